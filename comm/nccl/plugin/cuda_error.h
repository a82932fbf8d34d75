// The CUDA runtime's errors as the seam tells them.
#pragma once

#include <cuda_runtime_api.h>

#include "comm/nccl/cuda_api.h"

namespace dtrain::comm {

// An error is told to the caller: the next launch of a kernel, which asks for the last error, must
// not find it there.
inline CudaResult Told(cudaError_t error) {
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
