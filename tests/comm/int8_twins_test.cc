// The two int8 codecs give the same bits: compression's own, which has no dispatch, and the kernels
// that a program hands to it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/numeric/prng.h"
#include "comm/compression/int8_blocks.h"
#include "kernels/quantize/int8_blocks.h"

namespace dtrain::int8_twins_test {
namespace {

constexpr size_t kCount = 300 * comm::kInt8Block;
constexpr comm::Int8Codec kKernels = {kernels::PackInt8Blocks, kernels::UnpackInt8Blocks};

// Blocks of every magnitude, down to those that have no scale.
std::vector<float> Values() {
  std::vector<float> values(kCount);
  SplitMix64 random(11);
  for (size_t i = 0; i < kCount; ++i) {
    const auto exponent = static_cast<int>(i / comm::kInt8Block) - 150;
    values[i] = std::ldexp(static_cast<float>(2 * random.Uniform() - 1), exponent);
  }
  return values;
}

struct Packed {
  std::vector<uint8_t> bytes = std::vector<uint8_t>(comm::Int8Bytes(kCount));
  std::vector<float> error = {};
};

// `in_place`: the errors take the values' place.
Packed Pack(const comm::Int8Codec& codec, const std::vector<float>& values, bool in_place) {
  Packed packed{.error = values};
  codec.quantize(in_place ? packed.error.data() : values.data(), kCount, packed.bytes.data(),
                 packed.error.data());
  return packed;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(Int8TwinsTest, GiveTheSameScalesValuesAndErrors) {
  const std::vector<float> values = Values();
  for (const bool in_place : {false, true}) {
    const Packed scalar = Pack({}, values, in_place);
    const Packed simd = Pack(kKernels, values, in_place);
    EXPECT_EQ(scalar.bytes, simd.bytes);
    EXPECT_TRUE(SameBits(scalar.error, simd.error));
  }
  std::vector<uint8_t> without(comm::Int8Bytes(kCount));
  kKernels.quantize(values.data(), kCount, without.data(), nullptr);
  EXPECT_EQ(without, Pack({}, values, false).bytes);
}

TEST(Int8TwinsTest, GiveTheSameValuesBackAndAddTheSame) {
  const std::vector<float> values = Values();
  const Packed packed = Pack({}, values, false);
  for (const bool add : {false, true}) {
    std::vector<float> scalar = values;
    std::vector<float> simd = values;
    comm::DequantizeInt8(packed.bytes.data(), kCount, scalar.data(), add);
    kKernels.dequantize(packed.bytes.data(), kCount, simd.data(), add);
    EXPECT_TRUE(SameBits(scalar, simd)) << add;
  }
}

TEST(Int8TwinsTest, BothGiveNanForABlockThatIsNotFinite) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> values = Values();
    values[200 * comm::kInt8Block + 5] = bad;
    for (const comm::Int8Codec& codec : {comm::Int8Codec{}, kKernels}) {
      const Packed packed = Pack(codec, values, false);
      std::vector<float> back(kCount);
      codec.dequantize(packed.bytes.data(), kCount, back.data(), /*add=*/false);
      for (size_t i = 199 * comm::kInt8Block; i < 202 * comm::kInt8Block; ++i) {
        ASSERT_EQ(std::isnan(back[i]), i / comm::kInt8Block == 200) << i;
      }
    }
  }
}

}  // namespace
}  // namespace dtrain::int8_twins_test
