// CudaApi over the CUDA runtime that the plugin links statically. Thread-safe.
#pragma once

#include "comm/nccl/cuda_api.h"

namespace dtrain::comm {

// The process's instance, which is never destroyed.
CudaApi* RealCuda();

}  // namespace dtrain::comm
