// Where the time of a step goes on a GPU: marks on the compute stream, read when the device has
// passed them. A mark starts a phase, which lasts until the next.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "dtrain/late.h"
#include "runtime/device/device.h"

namespace dtrain {

class DevicePhases {
 public:
  // A field of StepNumbers, or null: time that belongs to no phase.
  using Phase = double StepNumbers::*;

  explicit DevicePhases(const Device& device) : device_(device) {}
  // Queues a mark; never waits.
  absl::Status Mark(Phase phase);
  // The last mark: whether the device has passed it, and waiting for that. REQUIRES: a mark.
  bool Done() const { return marks_[used_ - 1].event->Done(); }
  absl::Status Wait(Deadline deadline) const { return marks_[used_ - 1].event->Wait(deadline); }
  // Adds up phases, and the whole in `seconds`. REQUIRES: Done.
  void Read(StepNumbers& numbers) const;
  // For the next step.
  void Clear() { used_ = 0; }

 private:
  struct MarkOf {
    std::unique_ptr<DeviceEvent> event;
    Phase phase = nullptr;
  };
  const Device& device_;
  std::vector<MarkOf> marks_;  // Events are kept from step to step.
  size_t used_ = 0;
};

}  // namespace dtrain
