// Values that are made when they are first asked for, one for each key, and kept for the process.
#pragma once

#include <map>
#include <mutex>

#include "absl/functional/function_ref.h"

namespace dtrain::ops {

// Thread-safe. Get allocates nothing where the value is there.
template <class Key, class Value>
class MadeOnce {
 public:
  // Gives what make() gave the first time. `make` runs under a lock; when it throws, the next call
  // runs it again.
  Value Get(const Key& key, absl::FunctionRef<Value()> make) {
    const std::lock_guard lock(mutex_);
    const auto found = made_.find(key);
    return found != made_.end() ? found->second : made_.emplace(key, make()).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<Key, Value> made_;
};

}  // namespace dtrain::ops
