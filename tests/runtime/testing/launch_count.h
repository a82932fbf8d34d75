// Counts the kernels that a GPU would be given: dtrain's own, products of cublasLt, and one for
// each operation of LibTorch that computes, none for those that only look at memory or take some.
#pragma once

#include <cstdint>
#include <vector>

#include "ATen/record_function.h"

namespace dtrain::testing {

// Counts what the calling thread launches while one of this class lives, one at a time, and
// dtrain's kernels of all threads. Needs the emulated device (FakeKernelsAreEmulated), which counts
// its launches.
//
// The fake GPU's tensors are the host's, whose operations are not always a GPU's: attention, and a
// product in FP8, count as the one operation that they are there.
class LaunchCount {
 public:
  LaunchCount();
  LaunchCount(const LaunchCount&) = delete;
  LaunchCount& operator=(const LaunchCount&) = delete;
  ~LaunchCount();
  int64_t count() const;

 private:
  const int64_t before_;
  at::CallbackHandle handle_;
};

}  // namespace dtrain::testing
