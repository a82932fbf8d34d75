// Whether the plugin's kernels run on a GPU, asked before the first launch: what they are compiled
// for is a choice of the build (DTRAIN_CUDA_ARCHITECTURES), and LibTorch's own is another.
#pragma once

#include "absl/status/status.h"
#include "comm/nccl/cuda_api.h"
#include "kernels/cuda/cuda_table.h"

namespace dtrain {

// Asks for GPU `index`, which is the calling thread's current one afterwards. FailedPrecondition
// names the GPU, its architecture, CUDA's reason and the setting of the build that adds it.
absl::Status CheckDeviceImage(comm::CudaApi& api, const kernels::CudaKernelTable& kernels,
                              int index);

}  // namespace dtrain
