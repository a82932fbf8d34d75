// The elements that a CUDA thread takes where several threads share a result: a tree of sums,
// columns of partial sums, blocks of int8, a search. cuda_index.h is for threads that share none.
// Private to this room.
#pragma once

#include <cstdint>

#include "kernels/host_device.h"

namespace dtrain::kernels {

// The levels of TreeSum (grad_norm.h) without moving results: at a level of `stride`, [i + stride]
// is added to [i] for i a multiple of 2 stride, which pairs the same partial sums. Each block folds
// `group` sums, from its first stride up to half its group; then one block folds the groups.
constexpr int64_t kTreeGroup = 2048;
struct TreeSpan {
  int64_t begin;
  int64_t end;
};
DT_HOST_DEVICE constexpr TreeSpan TreeSpanOf(int64_t block, int64_t group, int64_t count) {
  const int64_t begin = block * group;
  return {begin, begin + group < count ? begin + group : count};
}
// A thread's pairs at a level: for (i = first; i + stride < the span's end; i += step).
struct TreeStride {
  int64_t first;
  int64_t step;
};
DT_HOST_DEVICE constexpr TreeStride TreeStrideOf(const TreeSpan& span, int64_t stride,
                                                 unsigned thread, unsigned threads) {
  return {span.begin + int64_t{thread} * 2 * stride, int64_t{threads} * 2 * stride};
}
// The blocks of the first fold; 0 where one block takes all at once.
constexpr int64_t TreeGroups(int64_t count) {
  return count <= kTreeGroup ? 0 : (count + kTreeGroup - 1) / kTreeGroup;
}
// The last fold's group: the power of two that holds all.
constexpr int64_t TreeWidth(int64_t count) {
  int64_t width = 1;
  while (width < count) {
    width *= 2;
  }
  return width;
}

// Blocks of int8: sixteen threads, half a warp, share one.
constexpr int kTeam = 16;
struct TeamSpan {
  int64_t block;
  int64_t first;  // The block's first element.
  int64_t end;    // The block's end; not above `first` where there is no such block.
  int64_t mine;   // This thread's first element; its next is kTeam * lanes further on.
};
constexpr int64_t TeamThreads(int64_t blocks) { return blocks * kTeam; }
DT_HOST_DEVICE constexpr TeamSpan TeamSpanOf(int64_t thread, int64_t block_size, int64_t n,
                                             int lanes) {
  const int64_t block = thread / kTeam;
  const int64_t first = block * block_size;
  return {block, first, first + block_size < n ? first + block_size : n,
          first + thread % kTeam * lanes};
}

// How many of the ascending `values` [n] are below `value`.
template <class T>
DT_HOST_DEVICE constexpr int64_t CountBelow(const T* values, int64_t n, int64_t value) {
  int64_t low = 0;
  int64_t high = n;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (values[middle] < value) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace dtrain::kernels
