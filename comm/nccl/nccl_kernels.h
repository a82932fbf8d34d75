// The device operations that the NCCL group itself needs, as function pointers, so that the group
// compiles without nvcc. The plugin sets them to CUDA kernels, the fake to host loops.
//
// Each queues work on `stream` and returns; none synchronises. Results have the same bits on every
// repeat.
#pragma once

#include <cstddef>

#include "base/numeric/dtype.h"
#include "comm/nccl/cuda_api.h"

namespace dtrain::comm {

struct NcclKernels {
  // *sum = sum over data[0, count) of x^2, in fp64. It is finite only if every element is.
  // `scratch` is device memory of scratch_bytes. dtype: fp32, bf16, fp16.
  CudaResult (*sum_of_squares)(const void* data, size_t count, DType dtype, double* sum,
                               void* scratch, CudaStream* stream) = nullptr;
  // *sum = values[0] + values[1] + ... in this order.
  CudaResult (*sum_in_order)(const double* values, int count, double* sum,
                             CudaStream* stream) = nullptr;
  // output[i] = scale * (parts[0][i] + parts[1][i] + ...) with fp32 sums in this order, where part
  // p starts at element p * count of `parts`. dtype: fp32, bf16, fp16. `output` may be part p of
  // `parts` itself.
  CudaResult (*sum_parts_in_order)(const void* parts, int part_count, size_t count, DType dtype,
                                   float scale, void* output, CudaStream* stream) = nullptr;
  // to[i] = from[i], rounded to nearest even or widened: from fp32 to bf16 or fp16, or back. Values
  // that fp16 cannot hold become infinite.
  CudaResult (*cast)(const void* from, DType from_dtype, void* to, DType to_dtype, size_t count,
                     CudaStream* stream) = nullptr;
  size_t scratch_bytes = 0;
};

}  // namespace dtrain::comm
