// Dropout: out = x / (1 - p) where an element is kept, else 0 (Srivastava et al. 2014).
//
// Which elements are kept follows from a Philox stream (philox.h; 16 bits an element) and their
// index: the mask is stored nowhere. Backward is the same call on the gradient with the same
// stream. Data fp32 or bf16, math in fp32, rounded once; a dropped NaN or infinity is 0. Same bits
// on every SIMD variant, thread count, split and on CUDA, where a NaN that is kept becomes CUDA's
// own (cuda_table.h). Thread-safe on disjoint buffers; nothing is allocated.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "base/check.h"
#include "base/numeric/float16.h"
#include "base/threads/parallel_for.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/layers/philox.h"

namespace dtrain::kernels {

template <class T>
struct DropoutArgs {
  int64_t count = 0;
  double p = 0;  // The probability to be dropped, in [0, 1]; taken to the nearest 2^-16.
  PhiloxStream stream;
  const T* x = nullptr;  // [count].
  T* out = nullptr;      // [count]; may be x.
};

// The numbers that the loops read. An element whose 16 bits, as the high half of a word, are at
// least `limit` is kept. The scale is of the p that was taken, so that the mean stays exact.
struct DropoutRule {
  uint32_t limit;
  float scale;
};
// REQUIRES: p in [0, 1); where it is 1 the wrappers write zeros.
inline DropoutRule MakeDropoutRule(double p) {
  DT_CHECK(p >= 0 && p < 1) << " dropout probability " << p;
  const double threshold = std::min(std::nearbyint(std::ldexp(p, 16)), 65535.0);
  return {static_cast<uint32_t>(threshold) << 16,
          static_cast<float>(1 / (1 - std::ldexp(threshold, -16)))};
}

void DropoutCpu(const DropoutArgs<float>& args, ParallelFor parallel_for);
void DropoutCpu(const DropoutArgs<BFloat16>& args, ParallelFor parallel_for);

}  // namespace dtrain::kernels
