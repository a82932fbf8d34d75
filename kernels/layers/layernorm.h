// LayerNorm with an optional fused residual addition, forward and backward.
//
//   h = x + residual            (rounded to T; h = x without a residual)
//   rstd = 1 / sqrt(mean((h - mean(h))^2) + eps)
//   y = (h - mean(h)) * rstd * weight + bias      (Ba et al. 2016, arXiv 1607.06450)
// The variance is summed from differences to the mean, so that an offset costs no digits. Weight
// and bias gradients are summed as row_chunks.h says. Data fp32 or bf16, math and sums in fp32,
// each result rounded once. Same bits on every SIMD variant, thread count and split; CUDA sums in
// another order. Thread-safe on disjoint buffers; nothing is allocated.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/numeric/float16.h"
#include "base/threads/parallel_for.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/row_chunks.h"

namespace dtrain::kernels {

template <class T>
struct LayerNormForwardArgs {
  int64_t tokens = 0;
  int64_t hidden = 0;
  float eps = 1e-5F;
  const T* x = nullptr;         // [tokens, hidden].
  const T* residual = nullptr;  // [tokens, hidden], or null.
  const T* weight = nullptr;    // [hidden].
  const T* bias = nullptr;      // [hidden], or null.
  T* sum = nullptr;             // [tokens, hidden]: h. Used with a residual only; may be x.
  T* y = nullptr;               // [tokens, hidden].
  float* mean = nullptr;        // [tokens], for the backward.
  float* rstd = nullptr;        // [tokens], for the backward.
};

template <class T>
struct LayerNormBackwardArgs {
  int64_t tokens = 0;
  int64_t hidden = 0;
  const T* h = nullptr;         // [tokens, hidden]: the forward's h (x, or sum).
  const T* weight = nullptr;    // [hidden].
  const float* mean = nullptr;  // [tokens].
  const float* rstd = nullptr;  // [tokens].
  const T* dy = nullptr;        // [tokens, hidden].
  const T* dsum = nullptr;      // [tokens, hidden]: the gradient that reached h past the norm, or
                                // null.
  T* dh = nullptr;              // [tokens, hidden]: of x and of residual alike; may be dy or dsum.
  T* dweight = nullptr;         // [hidden].
  T* dbias = nullptr;           // [hidden], or null where there is no bias.
  float* workspace = nullptr;   // LayerNormWorkspaceFloats(tokens, hidden) floats.
};

constexpr int64_t LayerNormWorkspaceFloats(int64_t tokens, int64_t hidden) {
  return RowChunks(tokens) * 2 * hidden;  // Weight and bias.
}

void LayerNormForwardCpu(const LayerNormForwardArgs<float>& args, ParallelFor parallel_for);
void LayerNormForwardCpu(const LayerNormForwardArgs<BFloat16>& args, ParallelFor parallel_for);
void LayerNormBackwardCpu(const LayerNormBackwardArgs<float>& args, ParallelFor parallel_for);
void LayerNormBackwardCpu(const LayerNormBackwardArgs<BFloat16>& args, ParallelFor parallel_for);

// The same on device pointers; repeats give the same bits. Queue kernels on `stream`, do not
// synchronise; Internal when a launch fails. The workspace is LayerNormWorkspaceFloatsCuda floats.
constexpr int64_t LayerNormWorkspaceFloatsCuda(int64_t tokens, int64_t hidden) {
  return RowChunksCuda(tokens, hidden) * 2 * hidden;
}
absl::Status LayerNormForwardCuda(const LayerNormForwardArgs<float>& args, CudaStream stream);
absl::Status LayerNormForwardCuda(const LayerNormForwardArgs<BFloat16>& args, CudaStream stream);
absl::Status LayerNormBackwardCuda(const LayerNormBackwardArgs<float>& args, CudaStream stream);
absl::Status LayerNormBackwardCuda(const LayerNormBackwardArgs<BFloat16>& args, CudaStream stream);

}  // namespace dtrain::kernels
