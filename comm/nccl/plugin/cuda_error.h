// The CUDA runtime's errors as the values of CudaResult.
#pragma once

#include <cuda_runtime_api.h>

#include "comm/nccl/cuda_api.h"

namespace dtrain::comm {

// The result of a call of the CUDA runtime. An error is cleared, because only this call's caller
// may learn of it and the next launch of a kernel asks for the last error.
inline CudaResult TakeError(cudaError_t error) {
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
  }
  return static_cast<CudaResult>(error);
}

// The first of two results that is not OK.
inline CudaResult FirstError(CudaResult before, CudaResult after) {
  return before != CudaResult::kSuccess ? before : after;
}

}  // namespace dtrain::comm
