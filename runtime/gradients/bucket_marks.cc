#include "runtime/gradients/bucket_marks.h"

#include <utility>

#include "base/status.h"

namespace dtrain {

absl::Status BucketMarks::Reset(const Device& device, size_t buckets, uint64_t cut) {
  marks_.clear();
  cut_ = cut;
  status_ = absl::OkStatus();
  for (size_t i = 0; i < buckets; ++i) {
    DT_ASSIGN_OR_RETURN(auto event, DeviceEvent::Create(device, /*timing=*/false));
    marks_.push_back({.event = std::move(event)});
  }
  return absl::OkStatus();
}

void BucketMarks::Record(size_t bucket) {
  Mark& mark = marks_[bucket];
  const absl::Status recorded = mark.event->RecordInGraph();
  mark.recorded = recorded.ok();
  status_.Update(recorded);
}

comm::CudaEvent* BucketMarks::after(size_t bucket, uint64_t cut) const {
  return cut == cut_ && bucket < marks_.size() && marks_[bucket].recorded
             ? marks_[bucket].event->handle()
             : nullptr;
}

bool MicroBatchMarks::Record(size_t bucket) {
  if (captured_ != nullptr) {
    captured_->Record(bucket);
  }
  return captured_ != nullptr;
}

}  // namespace dtrain
