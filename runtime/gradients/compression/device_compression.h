// The buckets of DeviceGradients that are compressed (comm.compression), and when.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/compression/bucket_reduction.h"
#include "comm/nccl/device_group.h"
#include "runtime/gradients/compression/device_reduction.h"
#include "runtime/gradients/compression/int8_on_device.h"

namespace dtrain {

class DeviceCompression {
 public:
  // Collective. By place: `shapes`. Null where nothing of them is compressed. REQUIRES: `device`
  // and `group` outlive it; all ranks give the same shapes and options.
  static absl::StatusOr<std::unique_ptr<DeviceCompression>> Create(
      const Device& device, comm::DeviceGroup& group, const comm::CompressionOptions& options,
      const std::vector<comm::BucketShape>& shapes);
  // Waits for work that is queued.
  ~DeviceCompression();

  // Whether the bucket at `place` is compressed in `step` (from 1).
  bool takes(size_t place, int64_t step) const {
    return step > start_step_ && reductions_[place] != nullptr;
  }
  // Queues the begin of its sum over ranks, in place. REQUIRES: it is taken.
  absl::Status Start(size_t place, float* data);
  bool has_started() const { return !started_.empty(); }
  // Queues the rest of all that were started since, and gives their places in that order: later
  // work on the group's stream finds the sums.
  absl::StatusOr<std::vector<size_t>> Finish();
  // Forgets what was started in a step that failed.
  void Drop() { started_.clear(); }
  int64_t bytes() const;

 private:
  DeviceCompression(const Device& device, comm::DeviceGroup& group, int64_t start_step)
      : device_(device), group_(group), start_step_(start_step) {}

  const Device& device_;
  comm::DeviceGroup& group_;
  const int64_t start_step_;
  std::shared_ptr<Int8Exchange> exchange_;                    // Null: none needs it.
  std::vector<std::unique_ptr<DeviceReduction>> reductions_;  // By place; null: not compressed.
  std::vector<size_t> started_;                               // Places, in order.
};

}  // namespace dtrain
