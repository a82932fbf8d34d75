#include "kernels/layers/rmsnorm.h"

#include "tests/kernels/kernel_testing.h"

namespace dtrain::kernels::rmsnorm_test {
namespace {

using testing::Buffer;
using testing::EachVariant;

constexpr float kEps = 1e-5F;

// One problem, with every buffer of forward and backward.
template <class T>
struct Problem {
  Problem(int64_t token_count, int64_t width, int64_t shift = 0)
      : tokens(token_count),
        hidden(width),
        x(tokens * hidden, shift),
        residual(tokens * hidden, shift),
        sum(tokens * hidden, shift),
        y(tokens * hidden, shift),
        dy(tokens * hidden, shift),
        dsum(tokens * hidden, shift),
        dh(tokens * hidden, shift),
        weight(hidden, shift),
        dweight(hidden, shift),
        rstd(tokens),
        workspace(RmsNormWorkspaceFloats(tokens, hidden)) {
    x.Fill(1, 2.0F);
    residual.Fill(2);
    weight.Fill(3, 0.5F, 1.0F);
    dy.Fill(4);
    dsum.Fill(5);
  }
  void Forward(bool with_residual, ParallelFor parallel_for) {
    RmsNormForwardCpu(RmsNormForwardArgs<T>{.tokens = tokens,
                                            .hidden = hidden,
                                            .eps = kEps,
                                            .x = x.get(),
                                            .residual = with_residual ? residual.get() : nullptr,
                                            .weight = weight.get(),
                                            .sum = with_residual ? sum.get() : nullptr,
                                            .y = y.get(),
                                            .rstd = rstd.get()},
                      parallel_for);
  }
  void Backward(bool with_residual, ParallelFor parallel_for) {
    RmsNormBackwardCpu(RmsNormBackwardArgs<T>{.tokens = tokens,
                                              .hidden = hidden,
                                              .h = H(with_residual).get(),
                                              .weight = weight.get(),
                                              .rstd = rstd.get(),
                                              .dy = dy.get(),
                                              .dsum = with_residual ? dsum.get() : nullptr,
                                              .dh = dh.get(),
                                              .dweight = dweight.get(),
                                              .workspace = workspace.get()},
                       parallel_for);
  }
  const Buffer<T>& H(bool with_residual) const { return with_residual ? sum : x; }
  bool SameBits(const Problem& other) const {
    return sum.SameBits(other.sum) && y.SameBits(other.y) && rstd.SameBits(other.rstd) &&
           dh.SameBits(other.dh) && dweight.SameBits(other.dweight);
  }
  bool GuardsIntact() const {
    return sum.GuardIntact() && y.GuardIntact() && rstd.GuardIntact() && dh.GuardIntact() &&
           dweight.GuardIntact() && workspace.GuardIntact();
  }

  int64_t tokens, hidden;
  Buffer<T> x, residual, sum, y, dy, dsum, dh, weight, dweight;
  Buffer<float> rstd, workspace;
};

template <class T>
float Rounded(float x) {
  T rounded;
  testing::Assign(rounded, x);
  return testing::ToF(rounded);
}

// The formulas of rmsnorm.h in fp64. Sums in fp32 over 64 lanes and a tree lose at most
// hidden / 64 + 8 roundings; with random signs far less. Every result is rounded once to T.
template <class T>
void ExpectFormula(const Problem<T>& p, bool with_residual) {
  const int64_t n = p.hidden;
  const double u = 0x1p-24;
  const double sum_error = u * (static_cast<double>(n) / 64 + 8);
  const Buffer<T>& h = p.H(with_residual);
  std::vector<double> dweight(static_cast<size_t>(n));
  std::vector<double> dweight_magnitude(static_cast<size_t>(n));
  for (int64_t row = 0; row < p.tokens; ++row) {
    double squares = 0;
    double dot = 0;
    double dot_magnitude = 0;
    for (int64_t i = row * n; i < (row + 1) * n; ++i) {
      if (with_residual) {
        ASSERT_EQ(h(i), Rounded<T>(p.x(i) + p.residual(i))) << i;
      }
      squares += double{h(i)} * h(i);
      const double term = double{p.dy(i)} * p.weight(i - row * n) * h(i);
      dot += term;
      dot_magnitude += std::fabs(term);
    }
    const double r = 1 / std::sqrt(squares / static_cast<double>(n) + double{kEps});
    ASSERT_NEAR(p.rstd(row), r, r * (sum_error + 2 * u)) << row;
    for (int64_t i = row * n; i < (row + 1) * n; ++i) {
      const double w = p.weight(i - row * n);
      const double y = h(i) * r * w;
      ASSERT_NEAR(p.y(i), y, testing::HalfUlp<T>(y) * 1.001 + std::fabs(y) * (sum_error + 5 * u));
      const double along_h = r * r * r * h(i) / static_cast<double>(n);
      const double passed = with_residual ? double{p.dsum(i)} : 0.0;
      const double dh = r * p.dy(i) * w - along_h * dot + passed;
      const double magnitude =
          std::fabs(r * p.dy(i) * w) + std::fabs(along_h) * dot_magnitude + std::fabs(passed);
      ASSERT_NEAR(p.dh(i), dh,
                  testing::HalfUlp<T>(dh) * 1.001 + magnitude * (4 * sum_error + 8 * u));
      const auto column = static_cast<size_t>(i - row * n);
      dweight[column] += double{p.dy(i)} * h(i) * r;
      dweight_magnitude[column] += std::fabs(double{p.dy(i)} * h(i) * r);
    }
  }
  const double rows = static_cast<double>(RowChunkRows(p.tokens) + RowChunks(p.tokens));
  for (int64_t i = 0; i < n; ++i) {
    const auto column = static_cast<size_t>(i);
    ASSERT_NEAR(p.dweight(i), dweight[column],
                testing::HalfUlp<T>(dweight[column]) * 1.001 +
                    dweight_magnitude[column] * (u * rows + sum_error + 4 * u));
  }
}

template <class T>
class RmsNorm : public ::testing::Test {};
using Types = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(RmsNorm, Types);

TYPED_TEST(RmsNorm, FollowsTheFormulaForEveryWidthAndAlignment) {
  EachVariant([](SimdLevel) {
    // The last is longer than the room that is kept for a row.
    for (const int64_t hidden : {1, 2, 15, 16, 17, 48, 63, 64, 65, 80, 127, 768, 1000, 8200}) {
      for (const int64_t tokens : {1, 5, 40}) {
        if (hidden > 1000 && tokens > 5) {
          continue;
        }
        for (const bool with_residual : {false, true}) {
          Problem<TypeParam> p(tokens, hidden, tokens == 5 ? 1 : 0);
          p.Forward(with_residual, SerialFor);
          p.Backward(with_residual, SerialFor);
          ExpectFormula(p, with_residual);
          ASSERT_TRUE(p.GuardsIntact()) << tokens << " x " << hidden;
          if (::testing::Test::HasFatalFailure()) {
            FAIL() << tokens << " x " << hidden << (with_residual ? " with residual" : "");
          }
        }
      }
    }
  });
}

TYPED_TEST(RmsNorm, GivesTheSameBitsInEveryVariantAndSplit) {
  SetVariantForTesting(SimdLevel::kScalar);
  Problem<TypeParam> oracle(1500, 100);  // More rows than the smallest chunks hold.
  oracle.Forward(true, SerialFor);
  oracle.Backward(true, SerialFor);
  EachVariant([&](SimdLevel) {
    for (const testing::Split& split : testing::Splits()) {
      Problem<TypeParam> other(1500, 100, 3);
      other.Forward(true, split);
      other.Backward(true, split);
      ASSERT_TRUE(other.SameBits(oracle)) << split.threads << " threads";
    }
  });
}

TYPED_TEST(RmsNorm, WorksInPlace) {
  Problem<TypeParam> apart(33, 65);
  apart.Forward(true, SerialFor);
  apart.Backward(true, SerialFor);
  Problem<TypeParam> in_place(33, 65);
  RmsNormForwardArgs<TypeParam> forward{.tokens = 33,
                                        .hidden = 65,
                                        .eps = kEps,
                                        .x = in_place.x.get(),
                                        .residual = in_place.residual.get(),
                                        .weight = in_place.weight.get(),
                                        .sum = in_place.x.get(),
                                        .y = in_place.y.get(),
                                        .rstd = in_place.rstd.get()};
  RmsNormForwardCpu(forward, SerialFor);
  EXPECT_TRUE(in_place.x.SameBits(apart.sum));
  EXPECT_TRUE(in_place.y.SameBits(apart.y));
  RmsNormBackwardArgs<TypeParam> backward{.tokens = 33,
                                          .hidden = 65,
                                          .h = in_place.x.get(),
                                          .weight = in_place.weight.get(),
                                          .rstd = in_place.rstd.get(),
                                          .dy = in_place.dy.get(),
                                          .dsum = in_place.dsum.get(),
                                          .dh = in_place.dsum.get(),
                                          .dweight = in_place.dweight.get(),
                                          .workspace = in_place.workspace.get()};
  RmsNormBackwardCpu(backward, SerialFor);
  EXPECT_TRUE(in_place.dsum.SameBits(apart.dh));
  EXPECT_TRUE(in_place.dweight.SameBits(apart.dweight));
}

TYPED_TEST(RmsNorm, WritesPastTheCachesTheSameBits) {
  const int64_t rows = 9000;  // 9000 x 1001 is above the streaming threshold in both dtypes.
  for (const bool residual : {false, true}) {
    Problem<TypeParam> many(rows, 1001);
    many.Forward(residual, SerialFor);
    Problem<TypeParam> one(1, 1001);
    for (const int64_t row : {int64_t{0}, int64_t{17}, rows - 1}) {
      std::copy_n(many.x.get() + row * 1001, 1001, one.x.get());
      std::copy_n(many.residual.get() + row * 1001, 1001, one.residual.get());
      one.Forward(residual, SerialFor);
      const size_t bytes = 1001 * sizeof(TypeParam);
      EXPECT_TRUE(testing::SameBytes(one.y.get(), many.y.get() + row * 1001, bytes));
      EXPECT_TRUE(
          testing::SameBytes(one.sum.get(), many.sum.get() + row * 1001, residual ? bytes : 0));
    }
  }
}

TYPED_TEST(RmsNorm, KeepsNanAndInfinityToTheirRow) {
  EachVariant([](SimdLevel) {
    Problem<TypeParam> p(4, 33);
    testing::Assign(p.x[33 + 32], testing::kNan);
    testing::Assign(p.x[99], testing::kInf);
    p.Forward(false, SerialFor);
    for (int64_t i = 0; i < 33; ++i) {
      EXPECT_TRUE(std::isfinite(p.y(i)));
      EXPECT_TRUE(std::isnan(p.y(33 + i)));
      EXPECT_TRUE(std::isfinite(p.y(66 + i)));
    }
    EXPECT_EQ(p.rstd(3), 0.0F);
    EXPECT_TRUE(std::isnan(p.y(99)));  // Infinity times zero, as in torch.
  });
}

TYPED_TEST(RmsNorm, TakesNoTokensAndGivesAZeroWeightGradient) {
  Problem<TypeParam> p(0, 20);
  p.Forward(false, SerialFor);
  p.Backward(false, SerialFor);
  for (int64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(p.dweight(i), 0.0F);
  }
}

TEST(RowChunkPlan, CoversEveryTokenOnceWithinItsLimit) {
  for (const int64_t tokens : {1, 15, 16, 17, 1023, 1024, 1025, 100'000}) {
    EXPECT_LE(RowChunks(tokens), kRowChunksMax);
    EXPECT_GE(RowChunks(tokens) * RowChunkRows(tokens), tokens);
    EXPECT_LT((RowChunks(tokens) - 1) * RowChunkRows(tokens), tokens);
  }
}

}  // namespace
}  // namespace dtrain::kernels::rmsnorm_test
