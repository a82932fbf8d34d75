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

// On CUDA a chunk is what one block takes: rows in turn with the other blocks. At most as many as
// an H100's 132 multiprocessors run at once, four blocks each, or two of those for wide rows: a few
// blocks more would run alone behind all others.
constexpr int64_t kRowChunksMaxCuda = 528;
constexpr int64_t kWideRowCuda = 2048;
constexpr int64_t RowChunksCuda(int64_t tokens, int64_t hidden) {
  return std::min<int64_t>(tokens,
                           hidden > kWideRowCuda ? kRowChunksMaxCuda / 2 : kRowChunksMaxCuda);
}

}  // namespace dtrain::kernels
