// The agents whose connections to a store have ended. The store's thread adds them, and an agent
// takes them. Thread-safe.
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include "comm/net/secure_stream.h"

namespace dtrain::launcher {

class GoneAgents {
 public:
  // Leaves out clients that are no agents.
  void Add(const comm::Hello& client) {
    if (client.role == comm::Hello::Role::kAgent) {
      const std::lock_guard lock(mutex_);
      gone_.push_back(client);
    }
  }
  // Those that were added since the last call.
  std::vector<comm::Hello> Take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(gone_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<comm::Hello> gone_;  // Guarded by mutex_.
};

}  // namespace dtrain::launcher
