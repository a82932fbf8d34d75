// RMSNorm with an optional fused residual addition, forward and backward.
//
//   h = x + residual            (rounded to T; h = x without a residual)
//   rstd = 1 / sqrt(mean(h^2) + eps)
//   y = h * rstd * weight       (Zhang & Sennrich 2019, arXiv 1910.07467)
// The weight gradient is summed as row_chunks.h says.
// Data fp32 or bf16, math and sums in fp32, each result rounded once. Same bits on every SIMD
// variant, thread count and split; CUDA sums in another order. Thread-safe on disjoint buffers;
// nothing is allocated.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/numeric/float16.h"
#include "base/threads/parallel_for.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/row_chunks.h"

namespace dtrain::kernels {

template <class T>
struct RmsNormForwardArgs {
  int64_t tokens = 0;
  int64_t hidden = 0;
  float eps = 1e-6F;
  const T* x = nullptr;         // [tokens, hidden].
  const T* residual = nullptr;  // [tokens, hidden], or null.
  const T* weight = nullptr;    // [hidden].
  T* sum = nullptr;             // [tokens, hidden]: h. Used with a residual only; may be x.
  T* y = nullptr;               // [tokens, hidden].
  float* rstd = nullptr;        // [tokens], for the backward.
};

template <class T>
struct RmsNormBackwardArgs {
  int64_t tokens = 0;
  int64_t hidden = 0;
  const T* h = nullptr;         // [tokens, hidden]: the forward's h (x, or sum).
  const T* weight = nullptr;    // [hidden].
  const float* rstd = nullptr;  // [tokens].
  const T* dy = nullptr;        // [tokens, hidden].
  const T* dsum = nullptr;      // [tokens, hidden]: the gradient that reached h past the norm, or
                                // null.
  T* dh = nullptr;              // [tokens, hidden]: of x and of residual alike; may be dy or dsum.
  T* dweight = nullptr;         // [hidden].
  float* workspace = nullptr;   // RmsNormWorkspaceFloats(tokens, hidden) floats.
};

constexpr int64_t RmsNormWorkspaceFloats(int64_t tokens, int64_t hidden) {
  return RowChunks(tokens) * hidden;
}

void RmsNormForwardCpu(const RmsNormForwardArgs<float>& args, ParallelFor parallel_for);
void RmsNormForwardCpu(const RmsNormForwardArgs<BFloat16>& args, ParallelFor parallel_for);
void RmsNormBackwardCpu(const RmsNormBackwardArgs<float>& args, ParallelFor parallel_for);
void RmsNormBackwardCpu(const RmsNormBackwardArgs<BFloat16>& args, ParallelFor parallel_for);

// The same on device pointers; repeats give the same bits. Queue kernels on `stream`, do not
// synchronise; Internal when a launch fails. The workspace is RmsNormWorkspaceFloatsCuda floats.
constexpr int64_t RmsNormWorkspaceFloatsCuda(int64_t tokens, int64_t hidden) {
  return RowChunksCuda(tokens, hidden) * hidden;
}
absl::Status RmsNormForwardCuda(const RmsNormForwardArgs<float>& args, CudaStream stream);
absl::Status RmsNormForwardCuda(const RmsNormForwardArgs<BFloat16>& args, CudaStream stream);
absl::Status RmsNormBackwardCuda(const RmsNormBackwardArgs<float>& args, CudaStream stream);
absl::Status RmsNormBackwardCuda(const RmsNormBackwardArgs<BFloat16>& args, CudaStream stream);

}  // namespace dtrain::kernels
