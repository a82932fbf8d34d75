// comm::Int8Reduction on a GPU: a bucket as int8 blocks, all to all, summed in fp32 in rank order,
// the sums quantised and gathered. All of it is queued by Start on the group's stream, behind the
// gradients; both memories of what is rounded away are device memory. The host's bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "comm/compression/bucket_reduction.h"
#include "comm/nccl/device_group.h"
#include "runtime/gradients/compression/device_reduction.h"

namespace dtrain {

// The memory that buckets are sent from and received in. One is enough, since one stream takes them
// in order.
struct Int8Exchange {
  std::shared_ptr<DeviceMemory> sent;
  std::shared_ptr<DeviceMemory> received;
  std::unique_ptr<comm::Registration> sent_registration;
  std::unique_ptr<comm::Registration> received_registration;

  // Collective. `elements`: of the largest bucket.
  static absl::StatusOr<std::shared_ptr<Int8Exchange>> Create(const Device& device,
                                                              comm::DeviceGroup& group,
                                                              int64_t elements);
};

class Int8OnDevice final : public DeviceReduction {
 public:
  // REQUIRES: `device` and `group` outlive it, and so does the work that it queues the group.
  static absl::StatusOr<std::unique_ptr<Int8OnDevice>> Create(
      const Device& device, comm::DeviceGroup& group, const comm::BucketShape& shape,
      const comm::CompressionOptions& options, std::shared_ptr<Int8Exchange> exchange);

  absl::Status Start(float* data) override;
  absl::StatusOr<bool> Advance() override { return true; }  // Start has queued everything.
  // Without the exchange, which is not its own.
  int64_t bytes() const override { return static_cast<int64_t>(memory_->bytes()) + flag_->bytes(); }

 private:
  Int8OnDevice(const Device& device, comm::DeviceGroup& group, const comm::BucketShape& shape,
               const comm::CompressionOptions& options, std::shared_ptr<Int8Exchange> exchange);
  absl::Status MakeMemory();
  absl::Status QueuePack(const float* data, comm::CudaStream* stream) const;
  absl::Status QueueSum(comm::CudaStream* stream) const;
  absl::Status QueueResult(float* data, comm::CudaStream* stream) const;
  float* values() const { return static_cast<float*>(memory_->data()); }
  float* sum() const { return values() + ranks_ * part_; }
  std::byte* sent() const { return static_cast<std::byte*>(exchange_->sent->data()); }
  std::byte* received() const { return static_cast<std::byte*>(exchange_->received->data()); }

  const Device& device_;
  comm::DeviceGroup& group_;
  const std::string name_;
  const int64_t elements_;
  const bool error_feedback_;
  const int64_t ranks_;
  const int64_t part_;  // Elements that a rank sums.
  const std::shared_ptr<Int8Exchange> exchange_;
  // [ranks x part], then [part]: what was rounded away of what this rank sent and of the sums that
  // it made; while a step runs the values to send, and the sum.
  std::shared_ptr<DeviceMemory> memory_;
  at::Tensor memories_;                 // Over it.
  std::unique_ptr<DeviceEvent> ready_;  // The compute stream, where the gradients are there.
  std::unique_ptr<FiniteFlag> flag_;
};

}  // namespace dtrain
