// The factors of PowerSGD on a GPU, what they leave out, and their arithmetic: LibTorch's
// operations on the compute stream over one piece of device memory.
//
// Each factored matrix M of a bucket (this step's gradient and what was left out before) becomes
// P = M Q, of which the ranks' sum is made orthonormal, then Q = M^T P, and M is replaced by what
// P Q^T leaves of it. Matrices of one shape are taken together. What is not factored travels whole
// beside P. Not thread-safe; nothing waits.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "comm/compression/bucket_reduction.h"
#include "comm/compression/low_rank_plan.h"
#include "runtime/device/device.h"

namespace dtrain {

class FactorsOnDevice {
 public:
  // REQUIRES: `device` outlives it.
  static absl::StatusOr<std::unique_ptr<FactorsOnDevice>> Create(
      const Device& device, const comm::BucketShape& shape,
      const comm::CompressionOptions& options);

  // Makes first() of `values`, the bucket [elements].
  void MakeFirst(const at::Tensor& values);
  // Makes second() of the ranks' sum in first(). REQUIRES: has_second().
  void MakeSecond();
  // Writes what both sums stand for to `values`, and keeps what they leave out of this rank's.
  void Expand(const at::Tensor& values);
  // Drops what was left out of a sum that was not finite (`broken`: [1] bool on the device), or of
  // every sum without error feedback.
  void Forget(const at::Tensor& broken);

  // The first message: P of all matrices, then the tensors that are not factored. Summed in place.
  const at::Tensor& first() const { return first_; }
  // Q of all matrices, summed in place; nothing where no matrix is factored.
  const at::Tensor& second() const { return q_; }
  bool has_second() const { return !batches_.empty(); }
  int64_t bytes() const { return static_cast<int64_t>(memory_->bytes()); }

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

  FactorsOnDevice(const comm::BucketShape& shape, const comm::CompressionOptions& options);
  void MakeBatches();
  absl::Status MakeMemory(const Device& device, uint64_t seed);
  void PlaceBatches(const at::Tensor& residuals);
  at::Tensor FirstBases(uint64_t seed) const;

  const int64_t rank_;
  const bool error_feedback_;
  const comm::LowRankPlan plan_;
  std::vector<Batch> batches_;
  std::shared_ptr<DeviceMemory> memory_;  // Memory of all tensors below and the batches'.
  at::Tensor first_;
  at::Tensor wholes_;  // What is not factored, in first_.
  at::Tensor q_;       // The basis; summed in place.
  at::Tensor own_q_;   // This rank's part of it.
  at::Tensor fresh_;   // Where it began.
};

}  // namespace dtrain
