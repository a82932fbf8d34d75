// Lets torch-free code run a loop on threads that the caller provides.
//
// runtime binds it to LibTorch's pool, so that a rank has one pool; SerialFor runs in the caller.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace dtrain {

// Runs body(begin, end) over disjoint chunks that cover [0, count), possibly at the same time on
// several threads, and returns when all are done. Chunks are multiples of `grain` but for the last.
using ParallelFor = absl::FunctionRef<void(
    int64_t count, int64_t grain, absl::FunctionRef<void(int64_t begin, int64_t end)> body)>;

inline void SerialFor(int64_t count, int64_t /*grain*/,
                      absl::FunctionRef<void(int64_t, int64_t)> body) {
  if (count > 0) {
    body(0, count);
  }
}

}  // namespace dtrain
