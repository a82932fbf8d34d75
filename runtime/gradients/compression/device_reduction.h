// How one gradient bucket is summed over ranks on a GPU where it is compressed: the policies of
// comm/compression in stream operations, with what they remember in device memory. Nothing waits:
// that a sum is not finite, which must leave nothing behind, is found and kept on the device.
//
// A reduction is started, then advanced until it is done, as comm::BucketReduction. Every rank
// starts and advances its buckets in the same order.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "runtime/device/device.h"

namespace dtrain {

class DeviceReduction {
 public:
  virtual ~DeviceReduction() = default;
  // Queues the sum over ranks of the bucket at `data`, in place, behind what the compute stream
  // holds, up to the last collective that can be started now. REQUIRES: the compute stream waits
  // for the group's since the last step.
  virtual absl::Status Start(float* data) = 0;
  // False: queued another collective. True: work that is queued on the group's stream from now on
  // finds the sum.
  virtual absl::StatusOr<bool> Advance() = 0;
  virtual int64_t bytes() const = 0;
};

// Whether the last sum of a bucket was finite: known to the device alone.
class FiniteFlag {
 public:
  static absl::StatusOr<std::unique_ptr<FiniteFlag>> Create(const Device& device, int64_t elements);
  // Queues the look at data [elements] on `stream`.
  absl::Status Queue(const float* data, CudaStream stream) const;
  // [1] bool for operations of the compute stream, which has waited for that look: it was not.
  at::Tensor Broken() const;
  int64_t bytes() const { return static_cast<int64_t>(memory_->bytes()); }

 private:
  FiniteFlag(const Device& device, int64_t elements, std::shared_ptr<DeviceMemory> memory)
      : device_(device), elements_(elements), memory_(std::move(memory)) {}
  const Device& device_;
  const int64_t elements_;
  const std::shared_ptr<DeviceMemory> memory_;  // The sum of squares; the blocks' sums.
};

}  // namespace dtrain
