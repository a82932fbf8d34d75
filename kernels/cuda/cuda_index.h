// The elements that a CUDA thread takes: plain arithmetic, shared by the kernels and a test on the
// CPU that shows for every size that each element is taken once. Private to this room.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/layers/philox.h"
#include "kernels/optimizer/grad_norm.h"

namespace dtrain::kernels {

// Elements of a thread: 16 bytes of bf16, 32 of fp32.
constexpr int kWidth = 8;

// Element-wise kernels: kWidth neighbours a thread, one by one where they are not all there.
constexpr int kElementThreads = 256;  // A block.
struct ElementSpan {
  int64_t first;
  int64_t end;  // Behind the last that there is; not above `first` where there is none.

  DT_HOST_DEVICE constexpr bool whole() const { return end - first == kWidth; }
};
constexpr int64_t ElementBlocks(int64_t n) {
  return (n + kElementThreads * kWidth - 1) / (kElementThreads * kWidth);
}
DT_HOST_DEVICE constexpr ElementSpan ElementSpanOf(int64_t thread, int64_t n) {
  const int64_t first = thread * kWidth;
  return {first, first + kWidth < n ? first + kWidth : n};
}

// Rows over a block of threads: `lanes` neighbours a thread and step. Where that many steps cover
// the row, `steps` of them are unrolled and its values stay in registers; with 0 it is of any
// length.
constexpr int kRowThreadsMax = 512;
struct RowWay {
  int lanes;
  int steps;
  unsigned threads;
};
// Threads that cover a row in few steps, in whole warps.
constexpr unsigned RowThreads(int64_t hidden, int lanes) {
  const int64_t warps = (hidden + 32 * lanes - 1) / (32 * lanes);
  return static_cast<unsigned>(warps <= 4    ? warps * 32
                               : warps <= 8  ? 128
                               : warps <= 16 ? 256
                                             : kRowThreadsMax);
}
constexpr RowWay RowWayOf(int64_t hidden, bool aligned) {
  if (!aligned || hidden % kWidth != 0) {
    return {1, 0, RowThreads(hidden, 1)};
  }
  const unsigned threads = RowThreads(hidden, kWidth);
  const int64_t steps = (hidden + threads * kWidth - 1) / (threads * kWidth);
  return {kWidth, steps <= 2 ? static_cast<int>(steps) : 0, threads};
}
// The first element of a thread in its k-th step; none where that is not below the width.
DT_HOST_DEVICE constexpr int64_t RowElement(int64_t k, unsigned thread, unsigned threads,
                                            int lanes) {
  return (k * threads + thread) * lanes;
}
// The same as a loop: for (i = first; i < the row's end; i += step).
struct RowStride {
  int64_t first;
  int64_t step;
};
DT_HOST_DEVICE constexpr RowStride RowStrideOf(unsigned thread, unsigned threads, int lanes) {
  return {RowElement(0, thread, threads, lanes), RowElement(1, 0, threads, lanes)};
}

// A row of n elements of `size` bytes at `address`: [begin, end) begins at a 16-byte word and is
// taken in whole steps of `lanes`; what lies around it, fewer than `lanes` at each side, one by
// one.
struct RowWords {
  int64_t begin;
  int64_t end;
};
DT_HOST_DEVICE constexpr RowWords RowWordsOf(uint64_t address, size_t size, int64_t n, int lanes) {
  const auto before = lanes == 1 ? 0 : static_cast<int64_t>((16 - address % 16) % 16 / size);
  const int64_t begin = before < n ? before : n;
  return {begin, begin + (n - begin) / lanes * lanes};
}

// A range over the threads of a grid: `lanes` neighbours each, all there or none.
constexpr unsigned GridBlocks(int64_t n, unsigned threads, int lanes) {
  const int64_t each = int64_t{threads} * lanes;
  return static_cast<unsigned>(n / each + (n % each != 0 ? 1 : 0));
}
DT_HOST_DEVICE constexpr int64_t GridElement(int64_t block, unsigned thread, unsigned threads,
                                             int lanes) {
  return (block * threads + thread) * lanes;
}

// Blocks of at most `threads` threads over rows of `items` pieces: `across` neighbours along a row
// and, where a row has few pieces, `rows` rows side by side, so that no thread is idle in a block
// that narrow rows fill. REQUIRES: items > 0.
struct RowBlock {
  unsigned across;
  unsigned rows;
};
constexpr RowBlock RowBlockOf(int64_t items, unsigned threads) {
  const int64_t blocks = GridBlocks(items, threads, 1);
  const auto across = static_cast<unsigned>((items + blocks - 1) / blocks);
  return {across, threads / across};
}

// Threads that share a row of `words` 16-byte words where each thread needs the whole row's result:
// some neighbours of a warp, or 0 for a block. Each has few words, and few threads have none.
constexpr int RowTeamOf(int64_t words) { return words <= 16 ? 8 : words <= 128 ? 32 : 0; }

// The elements [from, to) of a range at `offset` of the layout that lie in its b-th norm block; of
// them [from, whole) in eights, the rest one by one.
struct NormSpan {
  int64_t from;
  int64_t to;

  DT_HOST_DEVICE constexpr int64_t whole() const { return from + (to - from) / kWidth * kWidth; }
};
DT_HOST_DEVICE constexpr NormSpan NormSpanOf(int64_t block, int64_t offset, int64_t n) {
  const int64_t start = (offset / kNormBlock + block) * kNormBlock - offset;
  return {start > 0 ? start : 0, start + kNormBlock < n ? start + kNormBlock : n};
}

// Kernels that draw random bits: two threads a run of 64 (philox.h), each with eight of its sixteen
// lanes, so that the four words of its counters are for eight neighbouring elements each.
struct RandomSpan {
  int64_t run;
  int64_t lane;  // The first of eight.

  // The place of the first of the eight elements that take word k, in a buffer whose first element
  // is the layout's `first`; it may lie outside.
  DT_HOST_DEVICE constexpr int64_t Element(int k, int64_t first) const {
    return run * kPhiloxRun + lane + 16 * k - first;
  }
  // Whether all of its elements are there.
  DT_HOST_DEVICE constexpr bool whole(int64_t n, int64_t first) const {
    return Element(0, first) >= 0 && Element(3, first) + 8 <= n;
  }
};
constexpr int64_t RandomThreads(int64_t n, int64_t first) {
  return n == 0 ? 0 : 2 * ((first + n - 1) / kPhiloxRun - first / kPhiloxRun + 1);
}
DT_HOST_DEVICE constexpr RandomSpan RandomSpanOf(int64_t thread, int64_t first) {
  return {first / kPhiloxRun + thread / 2, thread % 2 * 8};
}

// Dropout: four threads a run of 128, each with four of its sixteen counters, so that each of their
// four words is for two of eight neighbouring elements.
struct HalfSpan {
  int64_t run;
  int64_t lane;  // The first of four.

  // The first of the eight elements that take word k.
  DT_HOST_DEVICE constexpr int64_t Element(int k) const {
    return run * kPhiloxHalfRun + 32 * k + 2 * lane;
  }
};
constexpr int64_t HalfSpanThreads(int64_t n) {
  return 4 * ((n + kPhiloxHalfRun - 1) / kPhiloxHalfRun);
}
DT_HOST_DEVICE constexpr HalfSpan HalfSpanOf(int64_t thread) {
  return {thread / 4, thread % 4 * 4};
}

// A transpose by tiles of 64 x 64: 256 threads read sixteen columns of a row each, then write
// sixteen rows of a column each.
constexpr int kTransposeTile = 64;
struct TileSpan {
  int64_t row;
  int64_t column;  // The first of sixteen.
};
constexpr int64_t TransposeTiles(int64_t n) { return (n + kTransposeTile - 1) / kTransposeTile; }
// A grid's y and z number tiles down: y alone takes 65,535.
struct TileGrid {
  int64_t y;
  int64_t z;  // The last of it may be partly beyond the rows.
};
constexpr TileGrid GridOfTiles(int64_t tiles) {
  constexpr int64_t kMost = 32768;
  return tiles <= kMost ? TileGrid{tiles, 1} : TileGrid{kMost, (tiles + kMost - 1) / kMost};
}
DT_HOST_DEVICE constexpr int64_t TileDown(int64_t y, int64_t z, int64_t grid_y) {
  return z * grid_y + y;
}
// The elements of the source [rows, columns] that `thread` reads for the tile at (down, across).
DT_HOST_DEVICE constexpr TileSpan TileSource(int64_t down, int64_t across, int thread) {
  return {down * kTransposeTile + thread / 4, across * kTransposeTile + thread % 4 * 16};
}
// The elements of the result [columns, rows] that `thread` writes for the same tile.
DT_HOST_DEVICE constexpr TileSpan TileResult(int64_t down, int64_t across, int thread) {
  return {across * kTransposeTile + thread / 4, down * kTransposeTile + thread % 4 * 16};
}

}  // namespace dtrain::kernels
