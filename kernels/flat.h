// Copies between flat buffers: cast, scale, accumulate, round, fill, over fp32, bf16 and fp16.
//
// Values pass through fp32 and are rounded once, to nearest even; a NaN stays a (quiet) NaN; fp16
// overflow gives infinity. Large results that nobody reads at once are written past the caches.
// Same bits on every SIMD variant, thread count, split and on CUDA, where a NaN that is rounded or
// comes out of arithmetic is CUDA's own (cuda_table.h): its sign and payload are not kept.
// Thread-safe on disjoint buffers; no alignment is needed, nothing is allocated, n may be 0.
// REQUIRES: dtypes are fp32, bf16 or fp16; buffers do not overlap (dst == src of one dtype is
// fine).
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/numeric/dtype.h"
#include "base/numeric/float16.h"
#include "base/threads/parallel_for.h"
#include "kernels/cuda/cuda_stream.h"

namespace dtrain::kernels {

// A flat buffer of `n` elements, n given beside it.
struct ConstFlat {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
};
struct MutableFlat {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
};

// dst = src.
void CopyCpu(int64_t n, ConstFlat src, MutableFlat dst, ParallelFor parallel_for);
// dst = src * scale.
void ScaleCpu(int64_t n, ConstFlat src, MutableFlat dst, float scale, ParallelFor parallel_for);
// dst = dst + src.
void AccumulateCpu(int64_t n, ConstFlat src, MutableFlat dst, ParallelFor parallel_for);
// rounded = src as bf16 holds it, and kept, unless it is null, is the same in bf16. `rounded` may
// be `src`.
void RoundToBf16Cpu(int64_t n, const float* src, float* rounded, BFloat16* kept,
                    ParallelFor parallel_for);
// dst = value.
void FillCpu(int64_t n, float value, MutableFlat dst, ParallelFor parallel_for);

// The same on device pointers. Queue one kernel on `stream`, do not synchronise; Internal when the
// launch fails.
absl::Status CopyCuda(int64_t n, ConstFlat src, MutableFlat dst, CudaStream stream);
absl::Status ScaleCuda(int64_t n, ConstFlat src, MutableFlat dst, float scale, CudaStream stream);
absl::Status AccumulateCuda(int64_t n, ConstFlat src, MutableFlat dst, CudaStream stream);
absl::Status RoundToBf16Cuda(int64_t n, const float* src, float* rounded, BFloat16* kept,
                             CudaStream stream);
absl::Status FillCuda(int64_t n, float value, MutableFlat dst, CudaStream stream);

}  // namespace dtrain::kernels
