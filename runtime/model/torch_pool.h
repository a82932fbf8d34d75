// LibTorch's thread pool as the ParallelFor that torch-free kernels take: a rank has one pool.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace dtrain {

// From now on LibTorch's threads look for work for some microseconds and then sleep. By themselves
// they look for milliseconds, on CPUs that other programs, or the thread that they wait for, could
// use: beside two busy programs a training on 2 CPUs then takes twice its time. Once a process,
// before LibTorch computes. Nothing where its threads leave CPUs free, of those that this process
// has under `cpu_quota` (base/system/cgroup.h).
void SleepBetweenOperations(double cpu_quota);

// From now on operations of LibTorch that the calling thread runs start no other threads: for
// threads of which several work side by side.
void ComputeOnThisThreadAlone();

void TorchParallelFor(int64_t count, int64_t grain,
                      absl::FunctionRef<void(int64_t begin, int64_t end)> body);

}  // namespace dtrain
