// One measured operation of `dtrain bench kernels`, and the memory that all of them share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/json.h"
#include "bench/kernels/probe.h"

namespace dtrain::bench {

constexpr int64_t kHidden = 2048;  // Columns of the operations that work on rows.
constexpr int64_t kHeadDim = 128;  // An attention head's; a row of kHidden has 16.
constexpr int kStreamsMax = 6;

// Streams of `elements` numbers each, up to four bytes wide: kernel and probe run in the same
// memory, one after the other. Arrays that are small beside a stream have memory of their own.
struct Arena {
  explicit Arena(int64_t element_count);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  template <class T>
  T* Stream(int i) const {
    return reinterpret_cast<T*>(base + i * stride);
  }
  int64_t rows() const { return elements / kHidden; }
  int64_t head_rows() const { return elements / kHeadDim; }

  int64_t elements;
  int64_t stride;
  char* base;
  std::vector<double> scratch;    // kernels::NormBlocks(0, elements).
  std::vector<float> mean, rstd;  // [rows] and [head_rows], of the norms.
  std::vector<float> workspace;   // LayerNorm's, which is the largest.
};

// A ParallelFor: equal parts in whole grains, one a thread.
struct Threads {
  int count;
  void operator()(int64_t n, int64_t grain, absl::FunctionRef<void(int64_t, int64_t)> body) const {
    const int64_t part = ((n + count - 1) / count + grain - 1) / grain * grain;
    std::vector<std::thread> others;
    for (int64_t begin = part; begin < n; begin += part) {
      others.emplace_back([=] { body(begin, std::min(n, begin + part)); });
    }
    body(0, std::min(n, part));
    for (std::thread& thread : others) {
      thread.join();
    }
  }
};

using Kernel = std::function<void(Arena&, const Threads&)>;

struct Case {
  std::string name;  // The twins know it by this name: bench/twins/kernel_twins.
  StreamMix mix;     // Its bytes: each operand once.
  Kernel run;
  Json shape = Json::object();  // The sizes that a twin needs besides `elements` and `hidden`.
};

// The cases of one kind each; Cases() is all of them.
std::vector<Case> FlatCases();        // Optimizer, norm of the gradient, casts and sums.
std::vector<Case> NormCases();        // RMSNorm and LayerNorm.
std::vector<Case> ActivationCases();  // GELU, SwiGLU, GeGLU.
std::vector<Case> RopeCases();        // Rotary positions.
std::vector<Case> TokenCases();       // Cross-entropy, dropout, embedding.
std::vector<Case> NarrowCases();      // FP8 and blocks of int8.
std::vector<Case> Cases();

}  // namespace dtrain::bench
