#include "comm/collectives/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/prng.h"
#include "comm/collectives/partition.h"
#include "comm/collectives/reduce_loops.h"
#include "tests/comm/group_oracle.h"

namespace dtrain::comm {
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
          const Result simd = ReduceAt(inputs, dtype, op, wire, CpuSimdLevel());
          // A NaN's payload may differ; that it is one may not.
          for (size_t i = 0; i < 10007; ++i) {
            const double a = oracle::At(scalar.output, dtype, i);
            const double b = oracle::At(simd.output, dtype, i);
            ASSERT_TRUE((std::isnan(a) && std::isnan(b)) ||
                        scalar.output.compare(i * DTypeBytes(dtype), DTypeBytes(dtype), simd.output,
                                              i * DTypeBytes(dtype), DTypeBytes(dtype)) == 0)
                << "element " << i << " " << a << " " << b << " op " << static_cast<int>(op);
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
    const Result simd =
        ReduceAt(inputs, DType::kFloat32, ReduceOp::kSum, Wire::kSameAsBuffer, CpuSimdLevel());
    EXPECT_EQ(scalar.squares, simd.squares) << count;
    const double exact = oracle::SquareSum(scalar.output, DType::kFloat32);
    EXPECT_NEAR(scalar.squares, exact, 1e-13 * exact);
  }
}

TEST(ReduceTest, MaxAndMinKeepANanOfAnyRank) {
  const float nan = std::nanf("");
  for (const SimdLevel level : {SimdLevel::kScalar, CpuSimdLevel()}) {
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
}  // namespace dtrain::comm
