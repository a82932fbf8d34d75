// NcclKernels as host loops queued on FakeCuda's streams.
#pragma once

#include "comm/nccl/fake/fake_cuda.h"
#include "comm/nccl/nccl_kernels.h"

namespace dtrain::comm {

// REQUIRES: `cuda` outlives every use; one FakeCuda a process at a time (the table holds plain
// function pointers).
NcclKernels MakeFakeKernels(FakeCuda* cuda);

}  // namespace dtrain::comm
