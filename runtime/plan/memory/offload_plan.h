// Sizes of the buffers through which offloaded states and activations travel. Pure; thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>

namespace dtrain::plan {

// Elements of the chunks in which a shard of `elements` is streamed through `buffers` near buffers:
// many enough that reading, updating and writing overlap, few enough that a disk works in large
// requests.
constexpr int64_t OffloadChunkElements(int64_t elements, int64_t buffers) {
  constexpr int64_t kSmallest = 4096;
  constexpr int64_t kLargest = int64_t{1} << 20;
  return std::clamp(elements / (2 * buffers), kSmallest, kLargest);
}

// Pinned buffers through which a GPU's gradients and values travel, if its states have `buffers`:
// one chunk comes, one is updated, one goes.
constexpr int64_t ExchangeBuffers(int64_t buffers) { return std::max<int64_t>(3, buffers); }

// Pinned buffers, each of the largest part of a bucket, through which a GPU's weights come from a
// file: one is read while those before it travel.
inline constexpr int64_t kShareBuffers = 3;

// Activations that wait to be written while forward goes on (one more is being written), and those
// that are read ahead of backward. Two are enough if the disk is as fast as a segment computes, and
// they take little memory.
inline constexpr int64_t kActivationsInFlight = 2;
inline constexpr int64_t kActivationsReadAhead = 2;

}  // namespace dtrain::plan
