#include "kernels/optimizer/grad_norm.h"

#include "tests/kernels/kernel_testing.h"

namespace dtrain::kernels::grad_norm_test {
namespace {

using testing::Buffer;
using testing::EachVariant;

template <class T>
SquareSum Sum(const Buffer<T>& x, ParallelFor parallel_for, int64_t offset = 0) {
  std::vector<double> scratch(static_cast<size_t>(NormBlocks(offset, x.size())));
  return SquareSumCpu(x.get(), offset, x.size(), scratch.data(), parallel_for);
}

template <class T>
class GradNorm : public ::testing::Test {};
using Types = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(GradNorm, Types);

TYPED_TEST(GradNorm, FollowsTheFormulaAtEverySizeAndAlignment) {
  EachVariant([](SimdLevel) {
    for (const int64_t n : testing::OddSizes()) {
      for (const int64_t shift : {0, 1}) {
        Buffer<TypeParam> x(n, shift);
        x.Fill(9, 2.0F);
        long double exact = 0;
        for (int64_t i = 0; i < n; ++i) {
          exact += static_cast<long double>(x(i)) * static_cast<long double>(x(i));
        }
        // Squares are exact in fp64; 4,096-element blocks and a tree round about 150 times.
        const double sum = Sum(x, SerialFor).sum;
        ASSERT_NEAR(sum, static_cast<double>(exact), 1e-13 * static_cast<double>(exact)) << n;
      }
    }
  });
}

TYPED_TEST(GradNorm, GivesTheSameBitsInEveryVariantAndSplit) {
  Buffer<TypeParam> x(300'001, 3);
  x.Fill(5, 7.0F);
  SetVariantForTesting(SimdLevel::kScalar);
  const double oracle = Sum(x, SerialFor).sum;
  EachVariant([&](SimdLevel) {
    for (const testing::Split& split : testing::Splits()) {
      ASSERT_EQ(Sum(x, split).sum, oracle) << split.threads << " threads";
    }
  });
}

TYPED_TEST(GradNorm, GivesTheSameBitsWhenRanksHoldRangesOfBlocks) {
  Buffer<TypeParam> x(10 * kNormBlock + 77);
  x.Fill(6);
  const double whole = Sum(x, SerialFor).sum;
  for (const int64_t cut : {kNormBlock, 3 * kNormBlock, 10 * kNormBlock}) {
    std::vector<double> blocks(static_cast<size_t>(NormBlocks(0, x.size())));
    BlockSquareSumsCpu(x.get(), 0, cut, blocks.data(), SerialFor);
    BlockSquareSumsCpu(x.get() + cut, cut, x.size() - cut, blocks.data() + cut / kNormBlock,
                       SerialFor);
    EXPECT_EQ(TreeSum(blocks.data(), static_cast<int64_t>(blocks.size())), whole) << cut;
  }
}

TYPED_TEST(GradNorm, CutsBlocksAtLayoutOffsets) {
  Buffer<TypeParam> x(5000);
  for (int64_t i = 0; i < x.size(); ++i) {
    testing::Assign(x[i], 1.0F);
  }
  ASSERT_EQ(NormBlocks(4000, 5000), 3);
  double blocks[3];
  BlockSquareSumsCpu(x.get(), 4000, 5000, blocks, SerialFor);
  EXPECT_EQ(blocks[0], 96);
  EXPECT_EQ(blocks[1], 4096);
  EXPECT_EQ(blocks[2], 808);
}

TYPED_TEST(GradNorm, FlagsNanAndInfinityWhereverTheyAre) {
  EachVariant([](SimdLevel) {
    for (const float bad : {testing::kNan, testing::kInf, -testing::kInf}) {
      for (const int64_t at : {int64_t{0}, int64_t{16}, int64_t{4097}, int64_t{9999}}) {
        Buffer<TypeParam> x(10'000);
        x.Fill(8);
        ASSERT_TRUE(Sum(x, SerialFor).finite());
        testing::Assign(x[at], bad);
        ASSERT_FALSE(Sum(x, SerialFor).finite()) << bad << " at " << at;
      }
    }
  });
}

TEST(GradNormFloat, DoesNotOverflowOnTheLargestValues) {
  Buffer<float> x(5000);
  for (int64_t i = 0; i < x.size(); ++i) {
    x[i] = std::numeric_limits<float>::max();
  }
  EachVariant([&](SimdLevel) {
    const SquareSum sum = Sum(x, SerialFor);
    EXPECT_TRUE(sum.finite());
    EXPECT_NEAR(
        std::sqrt(sum.sum) / (std::sqrt(5000.0) * double{std::numeric_limits<float>::max()}), 1.0,
        1e-13);
  });
}

TEST(TreeSumOrder, PairsNeighboursAndMovesAnOddLastOneUp) {
  // ((1 + tiny) + (tiny + tiny)) + 2 tiny: a running sum would lose each tiny on its own.
  const double tiny = 0x1p-53;
  double sums[] = {1, tiny, tiny, tiny, 2 * tiny};
  EXPECT_EQ(TreeSum(sums, 5), 1 + 4 * tiny);
  EXPECT_EQ(TreeSum(nullptr, 0), 0);
  double one[] = {4};
  EXPECT_EQ(TreeSum(one, 1), 4);
}

}  // namespace
}  // namespace dtrain::kernels::grad_norm_test
