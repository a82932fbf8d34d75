#include "base/system/cpu_features.h"

#include <algorithm>
#include <cstdlib>

namespace dtrain {
namespace {

SimdLevel Detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return SimdLevel::kAvx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return SimdLevel::kAvx2;
  }
#endif
  return SimdLevel::kScalar;
}

SimdLevel Allowed() {
  const char* const text = std::getenv("DTRAIN_SIMD");
  const absl::string_view name = text == nullptr ? "" : text;
  if (name == "scalar") {
    return SimdLevel::kScalar;
  }
  return name == "avx2" ? SimdLevel::kAvx2 : SimdLevel::kAvx512;
}

}  // namespace

SimdLevel CpuSimdLevel() {
  static const SimdLevel level = std::min(Detect(), Allowed());
  return level;
}

absl::string_view SimdLevelName(SimdLevel level) {
  switch (level) {
    case SimdLevel::kScalar:
      return "scalar";
    case SimdLevel::kAvx2:
      return "avx2";
    case SimdLevel::kAvx512:
      return "avx512";
  }
  return "?";
}

}  // namespace dtrain
