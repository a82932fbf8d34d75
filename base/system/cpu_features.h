// The SIMD level that run-time dispatch may use. Thread-safe.
#pragma once

#include "absl/strings/string_view.h"

namespace dtrain {

enum class SimdLevel : int { kScalar = 0, kAvx2 = 1, kAvx512 = 2 };

// The best level that this CPU and this build support: AVX2 means AVX2 + FMA + F16C, AVX-512 means
// F + BW + DQ + VL. DTRAIN_SIMD=scalar|avx2|avx512 lowers it (read once, at the first call).
SimdLevel CpuSimdLevel();
absl::string_view SimdLevelName(SimdLevel level);

}  // namespace dtrain
