// Rotary positions: every pair (a, b) of a head turns by its token's angle (Su et al. 2021,
// arXiv 2104.09864).
//
//   a' = a cos - b sin,  b' = b cos + a sin      (`inverse`: with -sin, which is the backward)
// Pair i of a head is its elements i and i + rotary_dim / 2 (half-split: Llama, Qwen, GPT-NeoX) or
// 2i and 2i + 1 (interleaved: GPT-J). Elements beyond rotary_dim are copied. Data fp32 or
// bf16, math in fp32, each result rounded once. Same bits on every SIMD variant, thread count,
// split and on CUDA, where a NaN is CUDA's own (cuda_table.h); what is only copied keeps its bits
// in fp32. Thread-safe on disjoint buffers; nothing is allocated.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/numeric/float16.h"
#include "base/threads/parallel_for.h"
#include "kernels/cuda/cuda_stream.h"

namespace dtrain::kernels {

enum class RopeForm : int { kHalfSplit = 0, kInterleaved = 1 };

// `heads` neighbouring heads of every token, [tokens, heads, head_dim] with a token's first element
// `in_stride` (`out_stride`) elements after the last token's. So q, k and v of a fused buffer
// [tokens, (heads + 2 kv_heads) head_dim] are three parts with one stride. `out` may be `in`, with
// equal strides.
template <class T>
struct RopeHeads {
  int64_t heads = 0;
  bool rotate = true;  // false: copied as they are.
  const T* in = nullptr;
  T* out = nullptr;
  int64_t in_stride = 0;
  int64_t out_stride = 0;
};

constexpr int kRopePartsMax = 3;

// The table is cos and sin [positions, rotary_dim / 2]. Token t stands at positions[t], or where
// that is null at t % sequence. REQUIRES: rotary_dim is even and at most head_dim; every position
// is one of the table (nothing checks it).
template <class T>
struct RopeArgs {
  RopeForm form = RopeForm::kHalfSplit;
  bool inverse = false;
  int64_t tokens = 0;
  int64_t sequence = 1;
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;
  const float* cos = nullptr;
  const float* sin = nullptr;
  const int64_t* positions = nullptr;  // [tokens], or null.
  RopeHeads<T> parts[kRopePartsMax] = {};
};

void RopeCpu(const RopeArgs<float>& args, ParallelFor parallel_for);
void RopeCpu(const RopeArgs<BFloat16>& args, ParallelFor parallel_for);

// The same on device pointers, all parts in one kernel. Queues it on `stream`, does not
// synchronise; Internal when the launch fails.
absl::Status RopeCuda(const RopeArgs<float>& args, CudaStream stream);
absl::Status RopeCuda(const RopeArgs<BFloat16>& args, CudaStream stream);

}  // namespace dtrain::kernels
