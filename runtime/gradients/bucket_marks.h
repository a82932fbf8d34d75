// Where in a captured backward each bucket of gradients is full: events that every launch of the
// graph records anew, so that a reduction outside of the graph waits for its bucket and not for the
// graph's end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "runtime/device/device.h"

namespace dtrain {

class BucketMarks {
 public:
  // One for each of `buckets`, which are as they were cut the `cut`th time. Takes its events now: a
  // capture is no time for it. An error is CUDA's.
  absl::Status Reset(const Device& device, size_t buckets, uint64_t cut);
  // During the capture, when the bucket is full on the compute stream.
  void Record(size_t bucket);
  // The first error of Record: what was captured is of no use.
  const absl::Status& status() const { return status_; }
  // The event of a bucket that the capture saw full; null: of none, or of buckets cut anew since.
  comm::CudaEvent* after(size_t bucket, uint64_t cut) const;

 private:
  struct Mark {
    std::unique_ptr<DeviceEvent> event;
    bool recorded = false;
  };
  std::vector<Mark> marks_;
  uint64_t cut_ = 0;
  absl::Status status_;
};

}  // namespace dtrain
