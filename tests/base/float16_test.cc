// bf16 and fp16 against an independent rounding in double, over every pattern and every boundary.
#include "base/numeric/float16.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/numeric/prng.h"

namespace dtrain::float16_test {
namespace {

float AnyFloat(SplitMix64& random) {
  return std::bit_cast<float>(static_cast<uint32_t>(random.Next()));
}

// `value` rounded to nearest even at a grid of 2^-(mantissa bits) within its binade, by frexp.
double RoundTo(double value, int mantissa_bits, int exponent_min) {
  if (value == 0 || !std::isfinite(value)) {
    return value;
  }
  int exponent = 0;
  (void)std::frexp(value, &exponent);
  const int quantum = std::max(exponent - 1, exponent_min) - mantissa_bits;
  return std::ldexp(std::nearbyint(std::ldexp(value, -quantum)), quantum);
}

TEST(BFloat16, EveryPatternSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const BFloat16 pattern{static_cast<uint16_t>(bits)};
    const float value = ToFloat(pattern);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(ToFloat(ToBFloat16(value)))) << bits;
    } else {
      EXPECT_EQ(ToBFloat16(value).bits, bits);
    }
  }
}

TEST(Float16, EveryPatternSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const Float16 pattern{static_cast<uint16_t>(bits)};
    const float value = ToFloat(pattern);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(ToFloat(ToFloat16(value)))) << bits;
    } else {
      EXPECT_EQ(ToFloat16(value).bits, bits);
    }
  }
}

TEST(BFloat16, RoundsToNearestEven) {
  SplitMix64 random(11);
  for (int i = 0; i < 200'000; ++i) {
    const float value = AnyFloat(random);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(ToFloat(ToBFloat16(value))));
      continue;
    }
    double expected = RoundTo(value, 7, -126);
    if (std::fabs(expected) > 0x1.fep127) {
      expected = std::copysign(std::numeric_limits<double>::infinity(), expected);
    }
    EXPECT_EQ(static_cast<double>(ToFloat(ToBFloat16(value))), expected) << value;
  }
}

TEST(BFloat16, ANanIsQuietAndKeepsItsSign) {
  // The payloads of these NaNs are only in bits that bf16 has not.
  EXPECT_EQ(ToBFloat16(std::bit_cast<float>(0x7f800001U)).bits, 0x7fc0);
  EXPECT_EQ(ToBFloat16(std::bit_cast<float>(0xff80ffffU)).bits, 0xffc0);
}

TEST(Float16, RoundsToNearestEvenThroughSubnormalsAndOverflow) {
  SplitMix64 random(12);
  for (int i = 0; i < 200'000; ++i) {
    // Exponents around fp16's range; most 32-bit patterns are far outside it.
    const auto exponent = static_cast<int>(random.Below(46)) - 27;
    const float value = static_cast<float>(std::ldexp(random.Uniform() * 2 - 1, exponent));
    double expected = RoundTo(value, 10, -14);
    if (std::fabs(expected) > 65504) {
      expected = std::copysign(std::numeric_limits<double>::infinity(), expected);
    }
    EXPECT_EQ(static_cast<double>(ToFloat(ToFloat16(value))), expected) << value;
  }
  EXPECT_EQ(ToFloat16(65519.996F).bits, 0x7bff);
  EXPECT_EQ(ToFloat16(65520.0F).bits, 0x7c00);  // The tie goes to the even neighbour: infinity.
  // The tie between zero and the smallest subnormal goes to zero, which is even.
  EXPECT_EQ(ToFloat16(0x1p-25F).bits, 0);
  EXPECT_EQ(ToFloat16(0x1.8p-24F).bits, 2);
  EXPECT_EQ(ToFloat16(-0.0F).bits, 0x8000);
}

}  // namespace
}  // namespace dtrain::float16_test
