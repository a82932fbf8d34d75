// Dropout (dropout.h) on a GPU whose random stream lies in device memory, so that a CUDA graph that
// holds it drops other elements each time it runs.
#pragma once

#include "absl/status/status.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/layers/dropout.h"

namespace dtrain::kernels {

// DropoutCpu on device pointers, with *device_stream in place of args.stream: read when the kernel
// runs. Queue one kernel on `stream`, do not synchronise; Internal when the launch fails.
absl::Status DropoutStreamCuda(const DropoutArgs<float>& args, const PhiloxStream* device_stream,
                               CudaStream stream);
absl::Status DropoutStreamCuda(const DropoutArgs<BFloat16>& args, const PhiloxStream* device_stream,
                               CudaStream stream);

}  // namespace dtrain::kernels
