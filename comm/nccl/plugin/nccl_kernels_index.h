// The elements that a thread of the plugin's kernels takes, and the sum of their squares. The
// kernels share this arithmetic with a test on the CPU.
#pragma once

#include <cstddef>

#include "base/numeric/host_device.h"
#include "base/numeric/square_sum.h"

namespace dtrain::comm {

constexpr int kNcclKernelThreads = 256;  // In a block.
constexpr size_t kNcclBlocksMax = 4096;

// How many blocks work on `count` elements, if each thread takes `lanes` of them in a step.
constexpr unsigned NcclKernelBlocks(size_t count, int lanes) {
  const size_t each = size_t{kNcclKernelThreads} * static_cast<size_t>(lanes);
  const size_t blocks = count / each + (count % each != 0 ? 1 : 0);
  return static_cast<unsigned>(blocks < kNcclBlocksMax ? blocks : kNcclBlocksMax);
}

// A thread's elements of `count`: [i, i + lanes) for i = first, first + step, ... below `whole`,
// then [i] for i = rest, rest + rest_step, ... below `count`.
struct NcclKernelSpan {
  size_t first;
  size_t step;
  size_t whole;
  size_t rest;
  size_t rest_step;
};
DT_HOST_DEVICE constexpr NcclKernelSpan NcclKernelSpanOf(size_t count, int lanes, unsigned block,
                                                         unsigned thread, unsigned blocks) {
  const size_t width = static_cast<size_t>(lanes);
  const size_t mine = size_t{block} * kNcclKernelThreads + thread;
  const size_t threads = size_t{blocks} * kNcclKernelThreads;
  const size_t whole = count / width * width;
  return {mine * width, threads * width, whole, whole + mine, threads};
}

// A sum of squares of any number of elements, initialised with {}. It adds in fp64 once for as many
// elements as a PairedSquareSum may hold.
struct LongSquareSum {
  static constexpr int kHeldMax = 4096;

  PairedSquareSum held;
  int count;  // Elements in `held`.
  double before;

  template <int kCount>
  DT_HOST_DEVICE void Add(const float* x) {
    if (count + kCount > kHeldMax) {
      before += held.sum();
      held = {};
      count = 0;
    }
    held.Add<kCount>(x);
    count += kCount;
  }
  DT_HOST_DEVICE double sum() const { return before + held.sum(); }
};

}  // namespace dtrain::comm
