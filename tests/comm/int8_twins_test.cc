// The two int8 codes give the same bits: the one of compression, which has no dispatch, and the
// kernels that ZeRO's quantised gathers and reductions use.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/numeric/prng.h"
#include "comm/compression/int8_blocks.h"
#include "kernels/quantize/int8_blocks.h"

namespace dtrain::int8_twins_test {
namespace {

TEST(Int8TwinsTest, GiveTheSameScalesValuesAndErrors) {
  constexpr size_t kCount = 300 * comm::kInt8Block;
  constexpr size_t kScales = kCount / comm::kInt8Block;
  std::vector<float> values(kCount);
  SplitMix64 random(11);
  for (size_t i = 0; i < kCount; ++i) {
    // Blocks of every magnitude, down to those that have no scale.
    const auto exponent = static_cast<int>(i / comm::kInt8Block) - 150;
    values[i] = std::ldexp(static_cast<float>(2 * random.Uniform() - 1), exponent);
  }
  std::vector<uint8_t> packed(comm::Int8Bytes(kCount));
  std::vector<float> error(kCount);
  comm::QuantizeInt8(values.data(), kCount, packed.data(), error.data());

  std::vector<int8_t> kernel_values(kCount);
  std::vector<float> kernel_scales(kScales);
  std::vector<float> kernel_error(kCount);
  kernels::QuantizeInt8Cpu({.n = kCount,
                            .block = comm::kInt8Block,
                            .src = {values.data(), DType::kFloat32},
                            .values = kernel_values.data(),
                            .scales = kernel_scales.data(),
                            .error = kernel_error.data()},
                           SerialFor);
  EXPECT_EQ(std::memcmp(packed.data(), kernel_scales.data(), kScales * sizeof(float)), 0);
  EXPECT_EQ(std::memcmp(packed.data() + kScales * sizeof(float), kernel_values.data(), kCount), 0);
  EXPECT_EQ(std::memcmp(error.data(), kernel_error.data(), kCount * sizeof(float)), 0);

  std::vector<float> back(kCount);
  std::vector<float> kernel_back(kCount);
  comm::DequantizeInt8(packed.data(), kCount, back.data(), false);
  kernels::DequantizeInt8Cpu({.n = kCount,
                              .block = comm::kInt8Block,
                              .values = kernel_values.data(),
                              .scales = kernel_scales.data(),
                              .dst = {kernel_back.data(), DType::kFloat32}},
                             SerialFor);
  EXPECT_EQ(std::memcmp(back.data(), kernel_back.data(), kCount * sizeof(float)), 0);
}

}  // namespace
}  // namespace dtrain::int8_twins_test
