// AdamW by the gradient rounded to bf16, for a step journal: what the journal does beside the
// update is done in the update's own pass, which memory bounds, so that it hardly shows.
//
// The bits of p, m and v are those of RoundToBf16Cpu (flat.h) followed by AdamWCpu (adamw.h). There
// is no CUDA form: a GPU rounds the gradient where it lies (RoundToBf16Cuda). Same bits and sums on
// every SIMD variant and split. Runs in the calling thread; thread-safe on disjoint buffers; no
// alignment is needed, nothing is allocated, n may be 0.
#pragma once

#include <cstdint>

#include "base/numeric/float16.h"
#include "kernels/optimizer/adamw.h"

namespace dtrain::kernels {

// Sums over weights, modulo 2^32, of a word of each: the halves of
// (its bits + its place in the layout * kWeightPlaceFactor) * kWeightFactor, one xor the other, so
// that changes of several weights cancel each other in a sum only by accident.
struct WeightSums {
  uint32_t before = 0;  // The weights that the update has found.
  uint32_t after = 0;   // The weights that it has left.
  bool operator==(const WeightSums&) const = default;
};
inline constexpr uint32_t kWeightPlaceFactor = 0x9e3779b1;  // Primes of xxHash.
inline constexpr uint32_t kWeightFactor = 0x85ebca77;

// Where the rounded gradient [n] goes.
struct KeptGradient {
  BFloat16* to = nullptr;  // Null: nowhere.
  bool past_caches = false;
};

// Elements of the flat buffers, [n] each.
struct AdamWRoundedArgs {
  int64_t n = 0;
  int64_t first = 0;  // The place of element 0 in the layout.
  float* p = nullptr;
  const float* g = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  BFloat16* p_bf16 = nullptr;  // Gets p as bf16; null: nothing does.
  KeptGradient kept;
};

// Updates p, m and v in place. The sums are zeros where the gradient goes nowhere.
WeightSums AdamWRoundedCpu(const AdamWRoundedArgs& args, const AdamWOptions& options);

}  // namespace dtrain::kernels
