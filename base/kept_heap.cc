#include "base/kept_heap.h"

#include <algorithm>
#include <climits>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace dtrain {

void KeepFreedMemory(const Environment& environment, int64_t available) {
#if defined(__GLIBC__)
  constexpr int kLargestBlock = 32 << 20;  // glibc allows no more.
  constexpr int64_t kWorthIt = 8 * int64_t{kLargestBlock};
  const int64_t kept = std::min<int64_t>(INT_MAX, available / 8);
  if (kept < kWorthIt || TunesHeap(environment)) {
    return;
  }
  mallopt(M_MMAP_THRESHOLD, kLargestBlock);
  mallopt(M_TRIM_THRESHOLD, static_cast<int>(kept));
#else
  static_cast<void>(environment);
  static_cast<void>(available);
#endif
}

}  // namespace dtrain
