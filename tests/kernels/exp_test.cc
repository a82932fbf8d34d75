// The vector exp by itself, through the header that every SIMD variant and CUDA compile.
#include "kernels/exp_math.h"
#include "kernels/float_math.h"
#include "kernels/simd/simd_scalar.h"
#include "tests/kernels/kernel_testing.h"

namespace dtrain::kernels::exp_test {
namespace {

double UlpError(float x, float got) {
  const double exact = std::exp(double{x});
  return std::fabs(double{got} - exact) / testing::Ulp32(exact);
}

TEST(ExpNonPositive, IsWithinTwoUlpOfTheExactValueEverywhere) {
  double worst = 0;
  float worst_x = 0;
  // Every exponent, mantissas by a prime stride; Activations drives the SIMD variants.
  std::vector<float> inputs;
  for (uint64_t bits = 0x80000000U; bits <= 0xffffffffU; bits += 3'571) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (!std::isnan(x)) {
      inputs.push_back(x);
    }
  }
  inputs.resize(inputs.size() / 16 * 16);
  for (size_t i = 0; i < inputs.size(); i += 16) {
    float got[16];
    const auto set = [](float x) { return scalar::Set(x); };
    scalar::Store(got, ExpNonPositive(scalar::Load(&inputs[i]), set));
    for (size_t lane = 0; lane < 16; ++lane) {
      const float one = ExpNonPositive(inputs[i + lane], [](float x) { return x; });  // CUDA's.
      EXPECT_EQ(std::bit_cast<uint32_t>(one), std::bit_cast<uint32_t>(got[lane]))
          << inputs[i + lane];
      const double error = UlpError(inputs[i + lane], got[lane]);
      if (error > worst) {
        worst = error;
        worst_x = inputs[i + lane];
      }
    }
  }
  EXPECT_LE(worst, 2.0) << "at " << worst_x;
  RecordProperty("worst_ulp", std::to_string(worst));
}

TEST(ExpNonPositiveShort, HasTheRelativeErrorThatItStates) {
  for (float x = 0; x > -87.0F; x -= 0.0007F) {
    const float got = ExpNonPositiveShort(x, [](float value) { return value; });
    const double exact = std::exp(double{x});
    ASSERT_LE(std::fabs(got - exact) / exact, 3e-6 + 3e-8 * std::fabs(x) + 0x1p-24) << x;
  }
}

TEST(ExpNonPositive, KeepsSpecialValues) {
  const float inputs[16] = {0.0F, -0.0F, -testing::kInf, testing::kNan, -1e-45F};
  float got[16];
  scalar::Store(got, ExpNonPositive(scalar::Load(inputs), [](float x) { return scalar::Set(x); }));
  EXPECT_EQ(got[0], 1.0F);
  EXPECT_EQ(got[1], 1.0F);
  EXPECT_EQ(got[2], 0.0F);
  EXPECT_TRUE(std::isnan(got[3]));
  EXPECT_EQ(got[4], 1.0F);
  for (const uint32_t nan : {0x7f800001U, 0x7fffffffU, 0xffffffffU, 0xffc00000U}) {
    const float x = std::bit_cast<float>(nan);
    EXPECT_TRUE(std::isnan(ExpNonPositive(x, [](float value) { return value; })));
    EXPECT_TRUE(std::isnan(ExpNonPositiveShort(x, [](float value) { return value; })));
  }
}

}  // namespace
}  // namespace dtrain::kernels::exp_test
