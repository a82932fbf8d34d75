#include "kernels/simd/variant.h"

#include <cstdlib>

#include "tests/kernels/kernel_testing.h"

namespace dtrain::kernels::variant_test {
namespace {

TEST(Variant, IsTheBestThatTheCpuAndTheEnvironmentAllow) {
  __builtin_cpu_init();
  absl::string_view expected = "scalar";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    expected = "avx2";
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      expected = "avx512";
    }
  }
  if (const char* const lowered = std::getenv("DTRAIN_SIMD"); lowered != nullptr) {
    expected = lowered;
  }
  EXPECT_EQ(ActiveVariant(), expected);
}

TEST(Variant, CanBeLoweredAndRestored) {
  const absl::string_view best = ActiveVariant();
  SetVariantForTesting(SimdLevel::kScalar);
  EXPECT_EQ(ActiveVariant(), "scalar");
  SetVariantForTesting(CpuSimdLevel());
  EXPECT_EQ(ActiveVariant(), best);
}

}  // namespace
}  // namespace dtrain::kernels::variant_test
