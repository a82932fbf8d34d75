#include "base/system/kept_heap.h"

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

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

void WarmFreedMemory(int64_t bytes) {
  constexpr size_t kBlock = 16 << 20;
  std::vector<std::unique_ptr<char[]>> blocks;
  for (int64_t taken = 0; taken < bytes; taken += kBlock) {
    blocks.emplace_back(new char[kBlock]);
    std::memset(blocks.back().get(), 1, kBlock);
  }
}

}  // namespace dtrain
