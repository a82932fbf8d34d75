// The threads that send parts of objects, for all files of a storage. Started at their
// first use. Thread-safe; destruction finishes what was queued.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/threads/worker.h"

namespace dtrain::checkpoint::s3 {

class TransferThreads {
 public:
  // REQUIRES: threads > 0.
  explicit TransferThreads(int threads) : workers_(static_cast<size_t>(threads)) {}
  // Queues `task` for the next thread in turn. Blocks while that thread's queue is full.
  void Submit(std::function<void()> task);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Worker>> workers_;
  size_t next_ = 0;
};

}  // namespace dtrain::checkpoint::s3
