// One named thread that runs closures in order from a bounded queue.
//
// Thread-safe. Destruction finishes the closures already queued, then joins. A std::exception that
// leaves a closure becomes the worker's status (one of the three places where exceptions are
// caught); later closures still run.
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "base/threads/bounded_queue.h"

namespace dtrain {

struct WorkerOptions {
  std::string name = "dtrain-worker";  // At most 15 characters are kept by the kernel.
  size_t queue_capacity = 64;
  bool low_priority =
      false;  // SCHED_BATCH and nice 10: loaders and writers must not delay compute.
};

class Worker {
 public:
  explicit Worker(WorkerOptions options);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();

  // Queues `task`; blocks while the queue is full. False when that lasts past `deadline`.
  bool Submit(std::function<void()> task, Deadline deadline = Deadline::Infinite());
  // The first exception seen as a Status, or OK.
  absl::Status status() const;

 private:
  void Run();
  const WorkerOptions options_;
  BoundedQueue<std::function<void()>> tasks_;
  mutable std::mutex mutex_;
  absl::Status status_;
  std::thread thread_;
};

// Names the calling thread and, when asked, lowers its priority.
void PrepareThread(const std::string& name, bool low_priority);

// For a thread that runs briefly and often beside threads that compute: requests short time slices
// for it, so that the scheduler runs it sooner (Linux 6.12's sched_runtime of ordinary threads;
// older kernels ignore it). Its share of a core does not grow, and no privilege is needed.
void TakeShortTurns();

}  // namespace dtrain
