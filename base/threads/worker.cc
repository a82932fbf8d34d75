#include "base/threads/worker.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dtrain {

void PrepareThread(const std::string& name, bool low_priority) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  if (low_priority) {
    const sched_param parameters{};
    sched_setscheduler(0, SCHED_BATCH, &parameters);
    setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 10);
  }
}

void TakeShortTurns() {
  if (sched_getscheduler(0) != SCHED_OTHER) {
    return;  // A policy that the user chose (chrt) stays.
  }
  // The argument of sched_setattr(2); glibc 2.36 has neither the call nor the struct.
  struct Attributes {
    uint32_t size = sizeof(Attributes);
    uint32_t policy = SCHED_OTHER;
    uint64_t flags = 0;
    int32_t nice = 0;
    uint32_t priority = 0;
    uint64_t runtime_nanos = 100'000;  // The shortest value that the kernel grants.
    uint64_t deadline_nanos = 0;
    uint64_t period_nanos = 0;
  } attributes;
  attributes.nice = getpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)));
  syscall(SYS_sched_setattr, 0, &attributes, 0U);  // If the kernel refuses, nothing changes.
}

Worker::Worker(WorkerOptions options)
    : options_(std::move(options)), tasks_(options_.queue_capacity), thread_([this] { Run(); }) {}

Worker::~Worker() {
  tasks_.Close();
  thread_.join();
}

bool Worker::Submit(std::function<void()> task, Deadline deadline) {
  return tasks_.Push(std::move(task), deadline);
}

absl::Status Worker::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

void Worker::Run() {
  PrepareThread(options_.name, options_.low_priority);
  while (auto task = tasks_.Pop()) {
    try {
      (*task)();
    } catch (const std::exception& error) {
      std::lock_guard lock(mutex_);
      if (status_.ok()) {
        status_ = absl::InternalError(absl::StrCat(options_.name, ": ", error.what()));
      }
    }
  }
}

}  // namespace dtrain
