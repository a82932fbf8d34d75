// Device and pinned memory in which an NCCL group keeps sums of squares and the parts of
// rank-ordered reductions. The group uses it under its start lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "comm/nccl/cuda_api.h"

namespace dtrain::comm {

class NcclScratch {
 public:
  // Has room for the sums of `slots` collectives in flight, and `kernel_bytes` for the kernels.
  static absl::StatusOr<std::unique_ptr<NcclScratch>> Create(CudaApi* cuda, size_t slots, int size,
                                                             size_t kernel_bytes);
  NcclScratch(const NcclScratch&) = delete;
  NcclScratch& operator=(const NcclScratch&) = delete;
  ~NcclScratch();

  double* device_sum(uint64_t slot) const { return sums_ + slot % slots_ * (size_ + 1); }
  // The sums of all ranks: [size].
  double* device_rank_sums(uint64_t slot) const { return device_sum(slot) + 1; }
  double* pinned_sum(uint64_t slot) const { return pinned_ + slot % slots_; }
  void* kernel_scratch() const { return kernel_; }
  // At least `bytes` of device memory. It is the same block until a larger one is asked for; to
  // grow, this waits for `stream`.
  absl::StatusOr<void*> Parts(size_t bytes, CudaStream* stream);

 private:
  NcclScratch(CudaApi* cuda, size_t slots, int size)
      : cuda_(cuda), slots_(slots), size_(static_cast<size_t>(size)) {}
  CudaApi* const cuda_;
  const size_t slots_;
  const size_t size_;
  double* sums_ = nullptr;
  double* pinned_ = nullptr;
  void* kernel_ = nullptr;
  void* parts_ = nullptr;
  size_t parts_bytes_ = 0;
};

}  // namespace dtrain::comm
