// Lends each call of an encoder the buffers of one thread, and keeps them for the next calls with
// the words that they remember. Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/plan/tokenizer/bpe.h"

namespace dtrain::plan {

class BpeScratchPool {
 public:
  std::unique_ptr<BpeScratch> Borrow() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<BpeScratch> scratch = std::move(idle_.back());
        idle_.pop_back();
        return scratch;
      }
    }
    return std::make_unique<BpeScratch>();
  }
  void GiveBack(std::unique_ptr<BpeScratch> scratch) {
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(std::move(scratch));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<BpeScratch>> idle_;  // Guarded by mutex_.
};

}  // namespace dtrain::plan
