#include "runtime/engine/device/device_phases.h"

#include "base/status.h"

namespace dtrain {

absl::Status DevicePhases::Mark(Phase phase) {
  if (used_ == marks_.size()) {
    DT_ASSIGN_OR_RETURN(auto event, DeviceEvent::Create(device_, /*timing=*/true));
    marks_.push_back({std::move(event), nullptr});
  }
  MarkOf& mark = marks_[used_++];
  mark.phase = phase;
  return mark.event->Record();
}

void DevicePhases::Read(StepNumbers& numbers) const {
  for (size_t i = 0; i + 1 < used_; ++i) {
    const double seconds = marks_[i + 1].event->SecondsSince(*marks_[i].event);
    numbers.seconds += seconds;
    if (marks_[i].phase != nullptr) {
      numbers.*marks_[i].phase += seconds;
    }
  }
}

}  // namespace dtrain
