// How elements are divided among ranks and chunks. Pure functions.
#pragma once

#include <algorithm>
#include <cstddef>

namespace dtrain::comm {

struct Slice {
  size_t start = 0;
  size_t count = 0;
};

// Slices start at multiples of this many elements, so that no two ranks write one cache line of
// aligned buffers, whatever the element type.
inline constexpr size_t kSliceElements = 64;

// Part `index` of `count` elements divided among `parts`; together they cover [0, count) in order.
constexpr Slice SliceOf(size_t count, int parts, int index) {
  const size_t units = (count + kSliceElements - 1) / kSliceElements;
  const auto n = static_cast<size_t>(parts);
  const auto i = static_cast<size_t>(index);
  const size_t start = std::min(count, units * i / n * kSliceElements);
  const size_t end = std::min(count, units * (i + 1) / n * kSliceElements);
  return {start, end - start};
}

// Chunk `index` of [0, count) in pieces of `chunk` elements; count 0 past the end.
constexpr Slice ChunkOf(size_t count, size_t chunk, size_t index) {
  const size_t start = std::min(count, index * chunk);
  return {start, std::min(chunk, count - start)};
}

constexpr size_t ChunkCount(size_t count, size_t chunk) { return (count + chunk - 1) / chunk; }

}  // namespace dtrain::comm
