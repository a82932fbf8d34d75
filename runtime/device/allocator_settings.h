// Sets LibTorch's GPU allocator where the user has not: to blocks that grow in place (expandable
// segments), if this machine gives the memory that they are made of.
#pragma once

#include <string>

#include "base/job_env.h"
#include "comm/nccl/cuda_api.h"

namespace dtrain {

// "" leaves LibTorch's defaults: PYTORCH_ALLOC_CONF or its older name says what counts, or the
// driver refuses exportable memory, as it does in some containers; one line of the log says so
// then. LibTorch takes no other kind for such segments and would throw at the first tensor.
// REQUIRES: the thread's current device is the one that trains.
std::string AllocatorSettings(comm::CudaApi& api, const Environment& environment);

}  // namespace dtrain
