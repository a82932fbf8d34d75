// LibTorch's thread pool as the ParallelFor that torch-free kernels take: a rank has one pool.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace dtrain {

// In the calling thread TorchParallelFor computes alone from now on: for one that works beside
// those that compute, where LibTorch would start a second pool of as many threads for it.
void ComputeAlone();

void TorchParallelFor(int64_t count, int64_t grain,
                      absl::FunctionRef<void(int64_t begin, int64_t end)> body);

}  // namespace dtrain
