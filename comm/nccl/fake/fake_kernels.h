// NcclKernels as host loops that are queued on FakeCuda's streams.
#pragma once

#include "comm/nccl/fake/fake_cuda.h"
#include "comm/nccl/nccl_kernels.h"

namespace dtrain::comm {

// REQUIRES: `cuda` outlives every use. A process uses one FakeCuda at a time, because the table has
// plain function pointers.
NcclKernels MakeFakeKernels(FakeCuda* cuda);

}  // namespace dtrain::comm
