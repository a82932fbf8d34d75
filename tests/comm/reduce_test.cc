#include "comm/collectives/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/numeric/prng.h"
#include "comm/collectives/partition.h"
#include "comm/collectives/reduce_loops.h"
#include "tests/comm/group_oracle.h"

namespace dtrain::comm::reduce_test {
namespace {

// Random bit patterns: every NaN, infinity, subnormal and zero is among them.
std::string RandomBits(size_t bytes, uint64_t seed) {
  SplitMix64 random(seed);
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; i += 8) {
    const uint64_t bits = random.Next();
    std::memcpy(text.data() + i, &bits, std::min<size_t>(8, bytes - i));
  }
  return text;
}

struct Result {
  std::string output;
  double squares = 0;
};

Result ReduceAt(const std::vector<std::string>& inputs, DType dtype, ReduceOp op, Wire wire,
                SimdLevel level) {
  std::vector<const void*> pointers;
  for (const std::string& input : inputs) {
    pointers.push_back(input.data());
  }
  Result result{std::string(inputs[0].size(), '\0')};
  void* const output = result.output.data();
  Reduce({.inputs = pointers,
          .outputs = absl::MakeConstSpan(&output, 1),
          .count = inputs[0].size() / DTypeBytes(dtype),
          .dtype = dtype,
          .op = op,
          .wire = wire,
          .sum_of_squares = &result.squares},
         level);
  return result;
}

// The levels that production may use and that this machine supports.
std::vector<SimdLevel> SimdLevels() {
  std::vector<SimdLevel> levels;
  for (const SimdLevel level : {SimdLevel::kAvx2, SimdLevel::kAvx512}) {
    if (level <= CpuSimdLevel()) {
      levels.push_back(level);
    }
  }
  return levels;
}

// NaNs may differ in their payload, but must be NaN in both.
void ExpectSameNumbers(const std::string& got, const std::string& want, DType dtype) {
  const size_t element = DTypeBytes(dtype);
  for (size_t i = 0; i < want.size() / element; ++i) {
    const double a = oracle::At(want, dtype, i);
    const double b = oracle::At(got, dtype, i);
    ASSERT_TRUE((std::isnan(a) && std::isnan(b)) ||
                want.compare(i * element, element, got, i * element, element) == 0)
        << "element " << i << ": " << b << ", scalar " << a;
  }
}

TEST(ReduceTest, TheSimdFormsGiveTheScalarBitsForEveryPattern) {
  ASSERT_EQ(FindLoopAvx2(LaneFormat::kFloat32, ReduceOp::kSum) != nullptr, true);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax, ReduceOp::kMin}) {
      for (const Wire wire : {Wire::kSameAsBuffer, Wire::kBFloat16, Wire::kFloat16}) {
        for (const size_t ranks : {1, 2, 3}) {
          if (wire != Wire::kSameAsBuffer && dtype != DType::kFloat32) {
            continue;
          }
          std::vector<std::string> inputs;
          for (size_t r = 0; r < ranks; ++r) {
            inputs.push_back(RandomBits(10007 * DTypeBytes(dtype), 17 + r));
          }
          const Result scalar = ReduceAt(inputs, dtype, op, wire, SimdLevel::kScalar);
          for (const SimdLevel level : SimdLevels()) {
            SCOPED_TRACE(absl::StrFormat("level %d op %d wire %d", static_cast<int>(level),
                                         static_cast<int>(op), static_cast<int>(wire)));
            ExpectSameNumbers(ReduceAt(inputs, dtype, op, wire, level).output, scalar.output,
                              dtype);
          }
        }
      }
    }
  }
}

TEST(ReduceTest, TheSquareSumHasTheSameBitsAtEveryLevel) {
  for (const size_t count : {1, 15, 16, 17, 4095, 4096, 4097, 100003}) {
    const std::vector<std::string> inputs = {oracle::Input(DType::kFloat32, count, 0, 5),
                                             oracle::Input(DType::kFloat32, count, 1, 5)};
    const Result scalar =
        ReduceAt(inputs, DType::kFloat32, ReduceOp::kSum, Wire::kSameAsBuffer, SimdLevel::kScalar);
    for (const SimdLevel level : SimdLevels()) {
      const Result simd =
          ReduceAt(inputs, DType::kFloat32, ReduceOp::kSum, Wire::kSameAsBuffer, level);
      EXPECT_EQ(scalar.squares, simd.squares) << count << " at level " << static_cast<int>(level);
    }
    const double exact = oracle::SquareSum(scalar.output, DType::kFloat32);
    EXPECT_NEAR(scalar.squares, exact, 1e-13 * exact);
  }
}

TEST(ReduceTest, MaxAndMinKeepANanOfAnyRank) {
  const float nan = std::nanf("");
  std::vector<SimdLevel> levels = SimdLevels();
  levels.push_back(SimdLevel::kScalar);
  for (const SimdLevel level : levels) {
    for (const ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin}) {
      std::vector<float> a(20, 1.0F);
      std::vector<float> b(20, 2.0F);
      a[3] = nan;
      b[18] = nan;
      const void* inputs[] = {a.data(), b.data()};
      std::vector<float> c(20);
      void* output = c.data();
      Reduce({.inputs = inputs,
              .outputs = absl::MakeConstSpan(&output, 1),
              .count = 20,
              .dtype = DType::kFloat32,
              .op = op},
             level);
      EXPECT_TRUE(std::isnan(c[3]) && std::isnan(c[18]));
      EXPECT_EQ(c[0], op == ReduceOp::kMax ? 2.0F : 1.0F);
    }
  }
}

TEST(PartitionTest, SlicesCoverEverythingOnceAndStartOnCacheLines) {
  for (const size_t count : {0, 1, 63, 64, 65, 1000, 262147}) {
    for (const int parts : {1, 2, 3, 7, 64}) {
      size_t next = 0;
      for (int i = 0; i < parts; ++i) {
        const Slice slice = SliceOf(count, parts, i);
        ASSERT_EQ(slice.start, next);
        ASSERT_TRUE(slice.count == 0 || slice.start % kSliceElements == 0);
        next += slice.count;
      }
      EXPECT_EQ(next, count);
    }
  }
}

}  // namespace
}  // namespace dtrain::comm::reduce_test
