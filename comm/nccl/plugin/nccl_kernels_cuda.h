// NcclKernels as CUDA kernels.
#pragma once

#include "comm/nccl/nccl_kernels.h"

namespace dtrain::comm {

NcclKernels CudaNcclKernels();

}  // namespace dtrain::comm
