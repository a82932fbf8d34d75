// CUB's sort of pairs for the emulated device: the same order, by the standard library.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

namespace cub {

struct DeviceRadixSort {
  // With `workspace` null only its size is given, as CUB does. Bits [begin, end) of a key count.
  template <class Key, class Value>
  static cudaError_t SortPairs(void* workspace, size_t& workspace_bytes, const Key* keys,
                               Key* sorted_keys, const Value* values, Value* sorted_values,
                               int count, int begin, int end, cudaStream_t) {
    const size_t needed = 1000 + 8 * static_cast<size_t>(count);
    if (workspace == nullptr) {
      workspace_bytes = needed;
      return cudaSuccess;
    }
    if (workspace_bytes < needed) {
      return cudaErrorInvalidValue;
    }
    std::memset(workspace, 0xff, needed);
    const auto bits = [&](int i) {
      return static_cast<uint64_t>(keys[i]) >> begin & ((uint64_t{1} << (end - begin)) - 1);
    };
    std::vector<int> order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return bits(a) < bits(b); });
    for (int i = 0; i < count; ++i) {
      sorted_keys[i] = keys[order[static_cast<size_t>(i)]];
      sorted_values[i] = values[order[static_cast<size_t>(i)]];
    }
    return cudaSuccess;
  }
};

}  // namespace cub
