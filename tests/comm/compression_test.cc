// The arithmetic of compressed gradients against a plain fp64 form.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/numeric/prng.h"
#include "comm/compression/int8_blocks.h"
#include "comm/compression/low_rank.h"

namespace dtrain::comm::compression_test {
namespace {

std::vector<float> Random(size_t count, uint64_t seed, double scale = 1.0) {
  SplitMix64 random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(scale * (2 * random.Uniform() - 1));
  }
  return values;
}

TEST(Int8BlocksTest, EveryValueIsTheNearestOfItsBlocksMultiples) {
  const size_t count = 4 * kInt8Block;
  std::vector<float> values = Random(count, 1);
  for (size_t i = 0; i < kInt8Block; ++i) {
    values[i] *= 1e-20F;              // A block of small values,
    values[kInt8Block + i] *= 1e20F;  // one of large ones,
    values[2 * kInt8Block + i] = 0;   // and one of zeros.
  }
  std::vector<uint8_t> packed(Int8Bytes(count));
  std::vector<float> error(count);
  std::vector<float> back(count);
  QuantizeInt8(values.data(), count, packed.data(), error.data());
  DequantizeInt8(packed.data(), count, back.data(), false);
  for (size_t block = 0; block < 4; ++block) {
    double largest = 0;
    for (size_t i = block * kInt8Block; i < (block + 1) * kInt8Block; ++i) {
      largest = std::max(largest, std::fabs(static_cast<double>(values[i])));
    }
    const double scale = largest / 127;
    for (size_t i = block * kInt8Block; i < (block + 1) * kInt8Block; ++i) {
      const double oracle = scale == 0 ? 0 : std::nearbyint(values[i] / scale) * scale;
      // Half a step if fp32 and fp64 decide a tie differently, otherwise the rounding of fp32.
      const bool tie =
          scale != 0 && std::fabs(std::fabs(std::remainder(values[i] / scale, 1.0)) - 0.5) < 1e-4;
      EXPECT_NEAR(back[i], oracle, tie ? 1.001 * scale : 1e-6 * largest) << i;
      EXPECT_LE(std::fabs(values[i] - back[i]), 0.5001 * scale) << i;
      EXPECT_FLOAT_EQ(error[i], values[i] - back[i]) << i;
    }
  }
}

TEST(Int8BlocksTest, AddingSumsOntoWhatIsThere) {
  const std::vector<float> values = Random(kInt8Block, 2);
  std::vector<uint8_t> packed(Int8Bytes(kInt8Block));
  QuantizeInt8(values.data(), kInt8Block, packed.data(), nullptr);
  std::vector<float> once(kInt8Block);
  DequantizeInt8(packed.data(), kInt8Block, once.data(), false);
  std::vector<float> twice = once;
  DequantizeInt8(packed.data(), kInt8Block, twice.data(), true);
  for (size_t i = 0; i < kInt8Block; ++i) {
    EXPECT_EQ(twice[i], 2 * once[i]);
  }
}

TEST(Int8BlocksTest, ABlockThatIsNotFiniteComesBackAsNanAndLeavesTheOthersAlone) {
  for (const float bad : {std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity(), std::nanf("")}) {
    std::vector<float> values = Random(2 * kInt8Block, 3);
    values[7] = bad;
    std::vector<uint8_t> packed(Int8Bytes(values.size()));
    QuantizeInt8(values.data(), values.size(), packed.data(), nullptr);
    std::vector<float> back(values.size());
    DequantizeInt8(packed.data(), back.size(), back.data(), false);
    EXPECT_TRUE(std::isnan(back[0]) && std::isnan(back[7]));
    EXPECT_TRUE(std::isfinite(back[kInt8Block]));
  }
}

TEST(Int8BlocksTest, ValuesTooSmallForAScaleAreKeptAsError) {
  std::vector<float> values(kInt8Block, 1e-44F);
  std::vector<uint8_t> packed(Int8Bytes(kInt8Block));
  std::vector<float> error(kInt8Block);
  QuantizeInt8(values.data(), kInt8Block, packed.data(), error.data());
  std::vector<float> back(kInt8Block);
  DequantizeInt8(packed.data(), kInt8Block, back.data(), false);
  EXPECT_EQ(back[0], 0.0F);
  EXPECT_EQ(error[0], values[0]);
}

// Entry `i` of column `k`, in fp64.
double At(const std::vector<float>& columns, size_t length, size_t k, size_t i) {
  return columns[k * length + i];
}

class LowRankTest : public ::testing::TestWithParam<std::pair<size_t, size_t>> {};
INSTANTIATE_TEST_SUITE_P(Shapes, LowRankTest,
                         ::testing::Values(std::pair<size_t, size_t>{1, 1},
                                           std::pair<size_t, size_t>{7, 3},
                                           std::pair<size_t, size_t>{64, 129},
                                           std::pair<size_t, size_t>{130, 65}));

TEST_P(LowRankTest, ProductsAreThoseOfTheOracle) {
  const auto [rows, columns] = GetParam();
  constexpr int kRank = 3;
  const std::vector<float> m = Random(rows * columns, 4);
  const std::vector<float> q = Random(kRank * columns, 5);
  const std::vector<float> p = Random(kRank * rows, 6);
  std::vector<float> mq(kRank * rows);
  std::vector<float> mtp(kRank * columns);
  std::vector<float> pq(rows * columns);
  std::vector<float> rest = m;
  Multiply({m.data(), rows, columns}, q.data(), kRank, mq.data());
  MultiplyTransposed({m.data(), rows, columns}, p.data(), kRank, mtp.data());
  Expand(p.data(), q.data(), kRank, rows, columns, pq.data());
  SubtractExpanded(p.data(), q.data(), kRank, rows, columns, rest.data());
  // Error of fp32 sums with that many terms.
  const double tolerance = 1e-6 * static_cast<double>(rows + columns);
  for (size_t k = 0; k < kRank; ++k) {
    for (size_t i = 0; i < rows; ++i) {
      double sum = 0;
      for (size_t j = 0; j < columns; ++j) {
        sum += static_cast<double>(m[i * columns + j]) * At(q, columns, k, j);
      }
      EXPECT_NEAR(mq[k * rows + i], sum, tolerance);
    }
    for (size_t j = 0; j < columns; ++j) {
      double sum = 0;
      for (size_t i = 0; i < rows; ++i) {
        sum += static_cast<double>(m[i * columns + j]) * At(p, rows, k, i);
      }
      EXPECT_NEAR(mtp[k * columns + j], sum, tolerance);
    }
  }
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < columns; ++j) {
      double sum = 0;
      for (size_t k = 0; k < kRank; ++k) {
        sum += At(p, rows, k, i) * At(q, columns, k, j);
      }
      EXPECT_NEAR(pq[i * columns + j], sum, 1e-6);
      EXPECT_NEAR(rest[i * columns + j], m[i * columns + j] - sum, 1e-6);
    }
  }
}

TEST(OrthogonalizeTest, ColumnsAreOrthonormalAlsoWhenTheyWereNearlyParallel) {
  constexpr size_t kRows = 200;
  constexpr int kRank = 4;
  std::vector<float> p = Random(kRank * kRows, 7);
  for (size_t i = 0; i < kRows; ++i) {
    p[kRows + i] = p[i] * 3.0F + 1e-3F * p[kRows + i];
  }
  Orthogonalize(p.data(), kRows, kRank);
  for (size_t a = 0; a < kRank; ++a) {
    for (size_t b = 0; b < kRank; ++b) {
      double dot = 0;
      for (size_t i = 0; i < kRows; ++i) {
        dot += At(p, kRows, a, i) * At(p, kRows, b, i);
      }
      EXPECT_NEAR(dot, a == b ? 1 : 0, 1e-5) << a << " " << b;
    }
  }
}

TEST(OrthogonalizeTest, AColumnInTheSpanOfTheOthersBecomesZeroAndNotNoise) {
  constexpr size_t kRows = 100;
  std::vector<float> p = Random(3 * kRows, 8);
  for (size_t i = 0; i < kRows; ++i) {
    p[kRows + i] = -2.0F * p[i];
    p[2 * kRows + i] = 0.0F;
  }
  Orthogonalize(p.data(), kRows, 3);
  EXPECT_NEAR(SquareSum(p.data(), kRows), 1.0, 1e-6);
  EXPECT_EQ(SquareSum(p.data() + kRows, 2 * kRows), 0.0);
}

TEST(SquareSumTest, IsThatOfFp64) {
  for (const size_t count : {0, 1, 7, 8, 9, 1000}) {
    const std::vector<float> values = Random(count, 9);
    double sum = 0;
    for (const float value : values) {
      sum += static_cast<double>(value) * static_cast<double>(value);
    }
    EXPECT_NEAR(SquareSum(values.data(), count), sum, 1e-12 * (sum + 1));
  }
}

}  // namespace
}  // namespace dtrain::comm::compression_test
