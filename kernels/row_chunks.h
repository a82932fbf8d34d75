// How the tokens of a norm are cut where its weight gradient is summed: each chunk's rows in order,
// then the chunks in order. A function of the number of tokens alone, so that the bits depend on no
// thread count.
#pragma once

#include <algorithm>
#include <cstdint>

namespace dtrain::kernels {

constexpr int64_t kRowChunksMax = 64;
constexpr int64_t RowChunkRows(int64_t tokens) {
  return std::max<int64_t>(16, (tokens + kRowChunksMax - 1) / kRowChunksMax);
}
constexpr int64_t RowChunks(int64_t tokens) {
  return (tokens + RowChunkRows(tokens) - 1) / RowChunkRows(tokens);
}

// On CUDA chunk c is rows c, c + chunks, ...: one block each, more than an H100 runs at once.
constexpr int64_t kRowChunksMaxCuda = 512;
constexpr int64_t RowChunksCuda(int64_t tokens) {
  return std::min<int64_t>(tokens, kRowChunksMaxCuda);
}

}  // namespace dtrain::kernels
