// comm::PowerSgdReduction on a GPU: factors, bases and what they leave out are device memory,
// products are LibTorch's on the compute stream, and the group sums P, then Q.
//
// P of a bucket is on its way while backward goes on; what needs it is queued when backward has
// ended, bucket after bucket, so that one bucket's products run while another's factors travel.
// Matrices of one shape are taken together. Other than on the host a direction that carries nothing
// is renewed by the one that its column began with: the host, which draws new ones, would have to
// wait to know. Products are the GPU's, so results agree with the host's to fp32's rounding; at
// ZeRO stage 0 every rank makes the result itself, and ranks on GPUs of different models may drift
// apart by it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "comm/compression/bucket_reduction.h"
#include "comm/compression/low_rank_plan.h"
#include "comm/nccl/device_group.h"
#include "runtime/gradients/device_reduction.h"

namespace dtrain {

class PowerSgdOnDevice final : public DeviceReduction {
 public:
  // REQUIRES: `device` and `group` outlive it, and so does the work that it queues the group.
  static absl::StatusOr<std::unique_ptr<PowerSgdOnDevice>> Create(
      const Device& device, comm::DeviceGroup& group, const comm::BucketShape& shape,
      const comm::CompressionOptions& options);

  absl::Status Start(float* data) override;
  absl::StatusOr<bool> Advance() override;
  int64_t bytes() const override { return static_cast<int64_t>(memory_->bytes()) + flag_->bytes(); }

 private:
  // The matrices of one shape.
  struct Batch {
    int64_t rows = 0;
    int64_t columns = 0;
    std::vector<int64_t> starts;  // Where each matrix begins in the bucket.
    at::Tensor matrices;          // [matrices, rows, columns]: what was left out; this step's.
    at::Tensor p;                 // [matrices, rank, rows], in first_.
    at::Tensor q;                 // [matrices, rank, columns], in q_.
    at::Tensor own_q;             // The same in own_q_.
    at::Tensor fresh;             // The same in fresh_.
  };

  PowerSgdOnDevice(const Device& device, comm::DeviceGroup& group, const comm::BucketShape& shape,
                   const comm::CompressionOptions& options);
  absl::Status MakeMemory(uint64_t seed);
  void MakeBatches();
  void PlaceBatches(const at::Tensor& residuals);
  at::Tensor FirstBases(uint64_t seed) const;
  at::Tensor TensorOf(float* data) const;  // [elements].
  // Queues the sum over ranks; the next Advance waits for it on the device.
  absl::Status Sum(const at::Tensor& values, const char* what);
  absl::Status StartSecond();
  absl::Status Finish();
  void Expand(const at::Tensor& data);
  // Clears the errors left out of a sum that was not finite, or all of them without error feedback.
  void Forget();

  const Device& device_;
  comm::DeviceGroup& group_;
  const std::string name_;
  const int64_t elements_;
  const int64_t rank_;
  const bool error_feedback_;
  const comm::LowRankPlan plan_;
  std::vector<Batch> batches_;
  std::shared_ptr<DeviceMemory> memory_;  // Memory of all tensors below and the batches'.
  at::Tensor first_;                      // P of all batches, then what travels whole.
  at::Tensor wholes_;                     // The latter.
  at::Tensor q_;                          // The basis; summed in place.
  at::Tensor own_q_;                      // This rank's part of it.
  at::Tensor fresh_;                      // Where it began.
  std::unique_ptr<DeviceEvent> summed_;   // On the group's stream.
  std::unique_ptr<DeviceEvent> done_;     // On the compute stream.
  std::unique_ptr<FiniteFlag> flag_;
  float* data_ = nullptr;  // The bucket under way.
  bool second_ = false;    // Q is under way.
};

}  // namespace dtrain
