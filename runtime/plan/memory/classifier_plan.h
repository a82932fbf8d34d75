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

// A GPU computes products in tiles of this many rows: a chunk that is no multiple of it pays for
// rows that it does not have (591 in place of 790 TFLOP/s with 1,639 rows on an H100).
inline constexpr int64_t kClassifierTileRows = 128;

// Tokens in a chunk; the chunks are as equal as possible, on a GPU in whole tiles. `wanted`: the
// caller's choice, or 0. REQUIRES: tokens and vocabulary from 1.
constexpr int64_t ClassifierChunkTokens(int64_t tokens, int64_t vocabulary, bool cpu,
                                        int64_t wanted = 0) {
  const int64_t elements = cpu ? kClassifierChunkCpu : kClassifierChunkGpu;
  const int64_t most = wanted > 0 ? wanted : std::max<int64_t>(1, elements / vocabulary);
  const bool in_tiles = !cpu && wanted == 0 && most >= kClassifierTileRows && tokens > most;
  const int64_t unit = in_tiles ? kClassifierTileRows : 1;
  const int64_t units = (tokens + unit - 1) / unit;
  const int64_t chunks = (units + most / unit - 1) / (most / unit);
  return (units + chunks - 1) / chunks * unit;
}

}  // namespace dtrain::plan
