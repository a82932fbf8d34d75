// comm::PowerSgdReduction on a GPU: FactorsOnDevice makes the factors on the compute stream, and
// the group sums P, then Q.
//
// P of a bucket is on its way while backward goes on; what needs it is queued when backward has
// ended, bucket after bucket, so that one bucket's products run while another's factors travel.
// Other than on the host a direction that carries nothing is renewed by the one that its column
// began with: the host, which draws new ones, would have to wait to know. Products are the GPU's,
// so results agree with the host's to fp32's rounding; at ZeRO stage 0 every rank makes the result
// itself, and ranks on GPUs of different models may drift apart by it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "comm/compression/bucket_reduction.h"
#include "comm/nccl/device_group.h"
#include "runtime/gradients/compression/device_reduction.h"
#include "runtime/gradients/compression/factors_on_device.h"

namespace dtrain {

class PowerSgdOnDevice final : public DeviceReduction {
 public:
  // REQUIRES: `device` and `group` outlive it, and so does the work that it queues the group.
  static absl::StatusOr<std::unique_ptr<PowerSgdOnDevice>> Create(
      const Device& device, comm::DeviceGroup& group, const comm::BucketShape& shape,
      const comm::CompressionOptions& options);

  absl::Status Start(float* data) override;
  absl::StatusOr<bool> Advance() override;
  int64_t bytes() const override { return factors_->bytes() + flag_->bytes(); }

 private:
  PowerSgdOnDevice(const Device& device, comm::DeviceGroup& group, const comm::BucketShape& shape)
      : device_(device),
        group_(group),
        name_(shape.name),
        elements_(static_cast<int64_t>(shape.elements)) {}
  at::Tensor TensorOf(float* data) const;  // [elements].
  // Queues the sum over ranks; the next Advance waits for it on the device.
  absl::Status Sum(const at::Tensor& values, const char* what);
  absl::Status Finish();

  const Device& device_;
  comm::DeviceGroup& group_;
  const std::string name_;
  const int64_t elements_;
  std::unique_ptr<FactorsOnDevice> factors_;
  std::unique_ptr<DeviceEvent> summed_;  // On the group's stream.
  std::unique_ptr<DeviceEvent> done_;    // On the compute stream.
  std::unique_ptr<FiniteFlag> flag_;
  float* data_ = nullptr;  // The bucket under way.
  bool second_ = false;    // Q is under way.
};

}  // namespace dtrain
