// A bounded multi-producer, multi-consumer queue. Thread-safe.
//
// Push blocks until there is room, Pop until there is an item; both give up at their deadline or
// when the queue is closed. Items queued before Close can still be popped.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "base/deadline.h"

namespace dtrain {

template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  // False when the deadline passed or the queue is closed; `item` is then dropped.
  bool Push(T item, Deadline deadline = Deadline::Infinite()) {
    std::unique_lock lock(mutex_);
    if (!WaitUntil(lock, room_, deadline,
                   [this] { return closed_ || items_.size() < capacity_; }) ||
        closed_) {
      return false;
    }
    items_.push_back(std::move(item));
    filled_.notify_one();
    return true;
  }
  // Never blocks: false when there is no room.
  bool TryPush(T item) {
    std::lock_guard lock(mutex_);
    if (closed_ || items_.size() >= capacity_) {
      return false;
    }
    items_.push_back(std::move(item));
    filled_.notify_one();
    return true;
  }
  // Nothing when the deadline passed, or the queue is closed and empty.
  std::optional<T> Pop(Deadline deadline = Deadline::Infinite()) {
    std::unique_lock lock(mutex_);
    if (!WaitUntil(lock, filled_, deadline, [this] { return closed_ || !items_.empty(); }) ||
        items_.empty()) {
      return std::nullopt;
    }
    T item = std::move(items_.front());
    items_.pop_front();
    room_.notify_one();
    return item;
  }
  void Close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
    room_.notify_all();
    filled_.notify_all();
  }
  size_t size() const {
    std::lock_guard lock(mutex_);
    return items_.size();
  }

 private:
  template <typename Ready>
  static bool WaitUntil(std::unique_lock<std::mutex>& lock, std::condition_variable& condition,
                        const Deadline& deadline, Ready ready) {
    while (!ready()) {
      if (deadline.infinite()) {
        condition.wait(lock);
      } else if (deadline.Expired()) {
        return false;
      } else {
        condition.wait_for(
            lock, std::chrono::nanoseconds(absl::ToInt64Nanoseconds(deadline.Remaining())));
      }
    }
    return true;
  }

  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable room_;
  std::condition_variable filled_;
  std::deque<T> items_;
  bool closed_ = false;
};

}  // namespace dtrain
