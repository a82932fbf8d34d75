// What a Work handle stands for: a collective of a group, or what somebody else makes of one.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/deadline.h"

namespace dtrain::comm {

class WorkState {
 public:
  virtual ~WorkState() = default;
  // As the functions of Work.
  virtual absl::Status Wait(Deadline deadline) = 0;
  virtual bool Done() const = 0;
  virtual int64_t DurationNanos() const = 0;
};

}  // namespace dtrain::comm
