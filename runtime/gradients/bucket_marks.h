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

// Whether the present micro-batch is being captured or was launched as a graph, and what its
// buckets have to do with the graph's marks.
class MicroBatchMarks {
 public:
  // An eager micro-batch begins, or none is under way.
  void Clear() {
    captured_ = nullptr;
    launched_ = nullptr;
  }
  void BeginCaptured(BucketMarks& marks) { captured_ = &marks; }
  void BeginLaunched(const BucketMarks& marks) { launched_ = &marks; }
  // Buckets are cut or ordered anew: marks of before are of other buckets.
  void NextCut() { ++cut_; }
  // Makes `marks` ready for a capture with `buckets` as they are cut now.
  absl::Status Reset(BucketMarks& marks, const Device& device, size_t buckets) const {
    return marks.Reset(device, buckets, cut_);
  }
  // In a capture, marks a full bucket: its reduction must not start. False: no capture.
  bool Record(size_t bucket);
  // The reduction of a bucket waits for this: its mark in the graph that was launched, or null.
  comm::CudaEvent* after(size_t bucket) const {
    return launched_ != nullptr ? launched_->after(bucket, cut_) : nullptr;
  }

 private:
  BucketMarks* captured_ = nullptr;
  const BucketMarks* launched_ = nullptr;
  uint64_t cut_ = 0;  // How often buckets were cut or ordered.
};

}  // namespace dtrain
