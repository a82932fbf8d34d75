// Flat values as int8 blocks, in chunks that threads share.
#include "runtime/gradients/packed_blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/numeric/float16.h"
#include "base/threads/parallel_for.h"
#include "comm/compression/int8_blocks.h"

namespace dtrain::packed_blocks_test {
namespace {

constexpr int64_t kElements = 40 * kPackedChunk;

std::vector<float> Values(double phase) {
  std::vector<float> values(static_cast<size_t>(kElements));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto at = static_cast<double>(i);
    values[i] = static_cast<float>(std::sin(at * 0.37 + phase) * std::exp(std::cos(at * 0.001)));
  }
  return values;
}

TEST(PackedBlocksTest, AreTheBlocksOfCommChunkByChunk) {
  EXPECT_EQ(PackedBytes(kElements), kElements * 260 / 256) << "what the memory plan counts";
  const std::vector<float> values = Values(0);
  std::vector<std::byte> packed(static_cast<size_t>(PackedBytes(kElements)));
  PackInt8({values.data()}, kElements, packed.data());
  std::vector<uint8_t> chunk(comm::Int8Bytes(static_cast<size_t>(kPackedChunk)));
  for (int64_t first = 0; first < kElements; first += kPackedChunk) {
    comm::QuantizeInt8(values.data() + first, static_cast<size_t>(kPackedChunk), chunk.data(),
                       nullptr);
    EXPECT_EQ(std::memcmp(packed.data() + PackedBytes(first), chunk.data(), chunk.size()), 0);
  }
}

TEST(PackedBlocksTest, ComeBackWithinHalfAStepInEveryType) {
  const std::vector<float> values = Values(1);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    std::vector<std::byte> typed(static_cast<size_t>(kElements) * DTypeBytes(dtype));
    kernels::CopyCpu(kElements, {values.data()}, {typed.data(), dtype}, SerialFor);
    std::vector<std::byte> packed(static_cast<size_t>(PackedBytes(kElements)));
    PackInt8({typed.data(), dtype}, kElements, packed.data());
    UnpackInt8(packed.data(), kElements, {typed.data(), dtype});
    std::vector<float> back(values.size());
    kernels::CopyCpu(kElements, {typed.data(), dtype}, {back.data()}, SerialFor);
    // The largest magnitude is e. A code is off by up to half of 1/127 of it, and bf16 rounds by up
    // to half of 1/128 before and after.
    const double tolerance = 2.7183 * (0.5 / 127 + (dtype == DType::kBFloat16 ? 1.0 / 128 : 1e-3));
    double largest = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(back[i]) - values[i]));
    }
    EXPECT_LT(largest, tolerance);
    EXPECT_GT(largest, 1e-3) << "int8 rounds";
  }
}

TEST(PackedBlocksTest, AreSummedInOrderAndAddedToWhatIsThere) {
  constexpr int kParts = 3;
  std::vector<std::byte> packed(static_cast<size_t>(kParts * PackedBytes(kElements)));
  std::vector<float> expected(static_cast<size_t>(kElements));
  std::vector<float> part(static_cast<size_t>(kElements));
  for (int i = 0; i < kParts; ++i) {
    std::byte* const run = packed.data() + i * PackedBytes(kElements);
    PackInt8({Values(i).data()}, kElements, run);
    UnpackInt8(run, kElements, {part.data()});
    for (size_t j = 0; j < expected.size(); ++j) {
      expected[j] = i == 0 ? part[j] : expected[j] + part[j];
    }
  }
  std::vector<float> sum(expected.size(), 77);
  SumInt8(packed.data(), kParts, kElements, sum.data(), /*add=*/false);
  EXPECT_EQ(sum, expected);
  SumInt8(packed.data(), kParts, kElements, sum.data(), /*add=*/true);
  for (size_t j = 0; j < sum.size(); ++j) {
    EXPECT_EQ(sum[j], expected[j] + expected[j]) << j;
  }
}

}  // namespace
}  // namespace dtrain::packed_blocks_test
