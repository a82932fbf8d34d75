#include "comm/nccl/nccl_scratch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/nccl/nccl_status.h"

namespace dtrain::comm {

absl::StatusOr<std::unique_ptr<NcclScratch>> NcclScratch::Create(CudaApi* cuda, size_t slots,
                                                                 int size, size_t kernel_bytes) {
  std::unique_ptr<NcclScratch> made(new NcclScratch(cuda, slots, size));
  void* data = nullptr;
  const size_t sum_bytes = slots * (static_cast<size_t>(size) + 1) * sizeof(double);
  DT_RETURN_IF_ERROR(CudaStatus(*cuda, cuda->MallocDevice(&data, sum_bytes), "cudaMalloc of sums"));
  made->sums_ = static_cast<double*>(data);
  DT_RETURN_IF_ERROR(CudaStatus(*cuda, cuda->MallocPinned(&data, slots * sizeof(double)),
                                "cudaMallocHost of sums"));
  made->pinned_ = static_cast<double*>(data);
  DT_RETURN_IF_ERROR(
      CudaStatus(*cuda, cuda->MallocDevice(&made->kernel_, std::max<size_t>(kernel_bytes, 8)),
                 "cudaMalloc of kernel scratch"));
  return made;
}

NcclScratch::~NcclScratch() {
  for (void* const data : {static_cast<void*>(sums_), kernel_, parts_}) {
    if (data != nullptr) {
      (void)cuda_->FreeDevice(data);
    }
  }
  if (pinned_ != nullptr) {
    (void)cuda_->FreePinned(pinned_);
  }
}

absl::StatusOr<void*> NcclScratch::Parts(size_t bytes, CudaStream* stream) {
  if (bytes <= parts_bytes_) {
    return parts_;
  }
  DT_RETURN_IF_ERROR(
      CudaStatus(*cuda_, cuda_->StreamSynchronize(stream), "waiting to grow the scratch"));
  if (parts_ != nullptr) {
    (void)cuda_->FreeDevice(parts_);
    parts_ = nullptr;
    parts_bytes_ = 0;
  }
  DT_RETURN_IF_ERROR(CudaStatus(
      *cuda_, cuda_->MallocDevice(&parts_, bytes),
      absl::StrCat("cudaMalloc of ", bytes, " bytes for the parts of a deterministic reduction")));
  parts_bytes_ = bytes;
  return parts_;
}

}  // namespace dtrain::comm
