// How offloaded optimizer states travel. Pure; thread-safe.
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

}  // namespace dtrain::plan
