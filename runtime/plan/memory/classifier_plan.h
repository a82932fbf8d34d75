// The chunks into which the fused classifier (ops::LinearCrossEntropy) cuts its tokens, and its
// scratch memory beside logits and gradients. Pure; thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>

namespace dtrain::plan {

// Logits of a chunk, at most: enough rows for a matrix product to run at full speed.
inline constexpr int64_t kClassifierChunkCpu = int64_t{16} << 20;
inline constexpr int64_t kClassifierChunkGpu = int64_t{256} << 20;

// Bytes for a logit of a type that no kernel takes (fp16). It goes through ATen in fp32, as a copy
// and beside it first its exponential, then its gradient.
inline constexpr int64_t kLossScratchBytes = 2 * sizeof(float);

// Tokens in a chunk; the chunks are as equal as possible. `wanted`: the caller's choice, or 0.
// REQUIRES: tokens and vocabulary from 1.
constexpr int64_t ClassifierChunkTokens(int64_t tokens, int64_t vocabulary, bool cpu,
                                        int64_t wanted = 0) {
  const int64_t elements = cpu ? kClassifierChunkCpu : kClassifierChunkGpu;
  const int64_t most = wanted > 0 ? wanted : std::max<int64_t>(1, elements / vocabulary);
  const int64_t chunks = (tokens + most - 1) / most;
  return (tokens + chunks - 1) / chunks;
}

}  // namespace dtrain::plan
