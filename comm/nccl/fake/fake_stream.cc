#include "comm/nccl/fake/fake_stream.h"

#include <utility>

namespace dtrain::comm {

FakeStream::~FakeStream() {
  if (!thread_.joinable()) {
    return;
  }
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void FakeStream::Push(std::function<void()> operation) {
  if (!thread_.joinable()) {
    operation();
    return;
  }
  std::lock_guard lock(mutex_);
  operations_.push_back(std::move(operation));
  changed_.notify_all();
}

void FakeStream::Synchronize() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return operations_.empty() && !running_; });
}

void FakeStream::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !operations_.empty(); });
    if (operations_.empty()) {
      return;
    }
    const std::function<void()> operation = std::move(operations_.front());
    operations_.pop_front();
    running_ = true;
    lock.unlock();
    operation();
    lock.lock();
    running_ = false;
    changed_.notify_all();
  }
}

}  // namespace dtrain::comm
