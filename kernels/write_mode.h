// When CPU kernels write past the caches. Private to this room.
#pragma once

#include <cstdint>

#include "kernels/simd/simd_table.h"

namespace dtrain::kernels {

// Elements that one call of a body takes at least, so that its overhead does not show.
constexpr int64_t kElementGrain = 16 * 1024;

// Below this the result may still be in the last-level cache when it is read.
constexpr int64_t kStreamBytesMin = 16 << 20;

// The mode for a result of `bytes`. One that is also an input has its lines in the cache anyway.
constexpr Write WriteFor(int64_t bytes, bool in_place) {
  return !in_place && bytes >= kStreamBytesMin ? Write::kStream : Write::kCached;
}

}  // namespace dtrain::kernels
