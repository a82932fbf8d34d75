// The handle of a collective that was started. Cheap to copy; thread-safe.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "base/deadline.h"

namespace dtrain::comm {

class WorkState;  // comm/work_state.h: shared between the handle and the thread that does the work.

class Work {
 public:
  // Done already, with OK.
  Work() = default;
  explicit Work(std::shared_ptr<WorkState> state) : state_(std::move(state)) {}

  // Blocks until the collective is finished and gives its result. DeadlineExceeded when `deadline`
  // passes first: the collective goes on and may be waited for again. Aborted when the group was
  // aborted; Unavailable names the peer that is gone.
  absl::Status Wait(Deadline deadline = Deadline::Infinite()) const;
  bool Done() const;
  // Nanoseconds between start and end on the comm thread (0 until done).
  int64_t DurationNanos() const;

 private:
  std::shared_ptr<WorkState> state_;
};

}  // namespace dtrain::comm
