// Token ids as they lie in a file, widened to int64, the index type of LibTorch. Pure; thread-safe.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "base/system/cpu_features.h"

namespace dtrain::plan {

// Fills `out` with the ids at `bytes`, which need no alignment: little-endian, of 1, 2, 4 or 8
// bytes each, unsigned except for those of 8. False: one of them is not below `vocabulary`; `out`
// is filled all the same. With `vocabulary` 0 every id will do. `level` is for tests: production
// uses CpuSimdLevel(). REQUIRES: level <= CpuSimdLevel().
[[nodiscard]] bool WidenTokens(const char* bytes, int bytes_per_token, absl::Span<int64_t> out,
                               int64_t vocabulary, SimdLevel level = CpuSimdLevel());

}  // namespace dtrain::plan
