// Which elements a CUDA thread takes, where that is more than its number times a width: plain
// arithmetic that the kernels and a test on the CPU share. Private to this room.
#pragma once

#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/philox.h"

namespace dtrain::kernels {

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
// Of the source [rows, columns], for the tile at (down, across).
DT_HOST_DEVICE constexpr TileSpan TileSource(int64_t down, int64_t across, int thread) {
  return {down * kTransposeTile + thread / 4, across * kTransposeTile + thread % 4 * 16};
}
// Of the result [columns, rows], for the same tile.
DT_HOST_DEVICE constexpr TileSpan TileResult(int64_t down, int64_t across, int thread) {
  return {across * kTransposeTile + thread / 4, down * kTransposeTile + thread % 4 * 16};
}

}  // namespace dtrain::kernels
