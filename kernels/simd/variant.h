// The choice of the SIMD variant that the CPU kernels use.
//
// All variants give the same bits: they share one source over sixteen lanes, and a fused
// multiply-add is fused in each (the scalar one is therefore slow: an oracle, not a fast path).
#pragma once

#include "absl/strings/string_view.h"
#include "base/system/cpu_features.h"

namespace dtrain::kernels {

// "scalar", "avx2" or "avx512": the variant that the next CPU kernel call runs. Thread-safe.
absl::string_view ActiveVariant();

// Makes later calls run `level`, for tests that compare variants.
// REQUIRES: level <= CpuSimdLevel(), and no kernel runs meanwhile.
void SetVariantForTesting(SimdLevel level);

}  // namespace dtrain::kernels
