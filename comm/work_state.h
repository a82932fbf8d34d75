// What a Work handle and the group share. Internal to comm.
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
