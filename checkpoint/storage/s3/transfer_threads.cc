#include "checkpoint/storage/s3/transfer_threads.h"

#include <utility>

namespace dtrain::checkpoint::s3 {

void TransferThreads::Submit(std::function<void()> task) {
  Worker* worker = nullptr;
  {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<Worker>& turn = workers_[next_++ % workers_.size()];
    if (turn == nullptr) {
      WorkerOptions options;
      options.name = "dtrain-s3";
      options.low_priority = true;
      turn = std::make_unique<Worker>(options);
    }
    worker = turn.get();
  }
  worker->Submit(std::move(task));
}

}  // namespace dtrain::checkpoint::s3
