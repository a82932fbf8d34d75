// The state behind a Work handle; each kind of group has its own subclass. Thread-safe; shared by
// the handles and the thread that does the work.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/deadline.h"

namespace dtrain::comm {

class WorkState {
 public:
  virtual ~WorkState() = default;
  // Like the functions of Work.
  virtual absl::Status Wait(Deadline deadline) = 0;
  virtual bool Done() const = 0;
  virtual int64_t DurationNanos() const = 0;
};

}  // namespace dtrain::comm
