#include "kernels/layers/layernorm.h"

#include "tests/kernels/kernel_testing.h"

namespace dtrain::kernels::layernorm_test {
namespace {

using testing::Buffer;
using testing::EachVariant;

constexpr float kEps = 1e-5F;

// The optional inputs of a problem, beside x and weight.
struct With {
  bool residual = false;
  bool bias = false;
};
constexpr With kEverything = {.residual = true, .bias = true};

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
        bias(hidden, shift),
        dweight(hidden, shift),
        dbias(hidden, shift),
        mean(tokens),
        rstd(tokens),
        workspace(LayerNormWorkspaceFloats(tokens, hidden)) {
    x.Fill(1, 2.0F, 0.5F);
    residual.Fill(2);
    weight.Fill(3, 0.5F, 1.0F);
    bias.Fill(6, 0.5F);
    dy.Fill(4);
    dsum.Fill(5);
  }
  void Forward(With with, ParallelFor parallel_for) {
    LayerNormForwardCpu(
        LayerNormForwardArgs<T>{.tokens = tokens,
                                .hidden = hidden,
                                .eps = kEps,
                                .x = x.get(),
                                .residual = with.residual ? residual.get() : nullptr,
                                .weight = weight.get(),
                                .bias = with.bias ? bias.get() : nullptr,
                                .sum = with.residual ? sum.get() : nullptr,
                                .y = y.get(),
                                .mean = mean.get(),
                                .rstd = rstd.get()},
        parallel_for);
  }
  void Backward(With with, ParallelFor parallel_for) {
    LayerNormBackwardCpu(LayerNormBackwardArgs<T>{.tokens = tokens,
                                                  .hidden = hidden,
                                                  .h = H(with).get(),
                                                  .weight = weight.get(),
                                                  .mean = mean.get(),
                                                  .rstd = rstd.get(),
                                                  .dy = dy.get(),
                                                  .dsum = with.residual ? dsum.get() : nullptr,
                                                  .dh = dh.get(),
                                                  .dweight = dweight.get(),
                                                  .dbias = with.bias ? dbias.get() : nullptr,
                                                  .workspace = workspace.get()},
                         parallel_for);
  }
  const Buffer<T>& H(With with) const { return with.residual ? sum : x; }
  bool SameBits(const Problem& other) const {
    return sum.SameBits(other.sum) && y.SameBits(other.y) && mean.SameBits(other.mean) &&
           rstd.SameBits(other.rstd) && dh.SameBits(other.dh) && dweight.SameBits(other.dweight) &&
           dbias.SameBits(other.dbias);
  }
  bool GuardsIntact() const {
    return sum.GuardIntact() && y.GuardIntact() && mean.GuardIntact() && rstd.GuardIntact() &&
           dh.GuardIntact() && dweight.GuardIntact() && dbias.GuardIntact() &&
           workspace.GuardIntact();
  }

  int64_t tokens, hidden;
  Buffer<T> x, residual, sum, y, dy, dsum, dh, weight, bias, dweight, dbias;
  Buffer<float> mean, rstd, workspace;
};

template <class T>
float Rounded(float x) {
  T rounded;
  testing::Assign(rounded, x);
  return testing::ToF(rounded);
}

// The formulas of layernorm.h in fp64. Sums in fp32 over 32 lanes or more and a tree lose at most
// hidden / 32 + 8 roundings of the magnitudes' sum; a difference to the mean loses what the mean
// does. Every result is rounded once to T.
template <class T>
void ExpectFormula(const Problem<T>& p, With with) {
  const int64_t n = p.hidden;
  const auto width = static_cast<double>(n);
  const double u = 0x1p-24;
  const double sum_error = u * (width / 32 + 8);
  const Buffer<T>& h = p.H(with);
  std::vector<double> dweight(static_cast<size_t>(n)), dweight_magnitude = dweight, dbias = dweight,
                                                       dbias_magnitude = dweight;
  for (int64_t row = 0; row < p.tokens; ++row) {
    const int64_t first = row * n;
    double total = 0;
    double magnitude = 0;
    for (int64_t i = first; i < first + n; ++i) {
      if (with.residual) {
        ASSERT_EQ(h(i), Rounded<T>(p.x(i) + p.residual(i))) << i;
      }
      total += h(i);
      magnitude += std::fabs(double{h(i)});
    }
    const double mean = total / width;
    const double mean_error = sum_error * magnitude / width + u * std::fabs(mean);
    ASSERT_NEAR(p.mean(row), mean, mean_error) << row;
    double squares = 0;
    for (int64_t i = first; i < first + n; ++i) {
      squares += (h(i) - mean) * (h(i) - mean);
    }
    // An error of the mean changes the variance by its square; each square has three roundings.
    const double variance = squares / width;
    const double r = 1 / std::sqrt(variance + double{kEps});
    const double r_error =
        r * (sum_error + 4 * u + mean_error * mean_error / (variance + double{kEps}) + 2 * u);
    ASSERT_NEAR(p.rstd(row), r, r_error) << row;
    double mean_u = 0, mean_uz = 0, u_magnitude = 0, uz_magnitude = 0;
    const auto z_of = [&](int64_t i) { return (h(i) - mean) * r; };
    const auto z_error = [&](int64_t i) {
      return r * mean_error + std::fabs(z_of(i)) * (r_error / r + 3 * u);
    };
    double worst_z_error = 0;
    for (int64_t i = first; i < first + n; ++i) {
      const double du = double{p.dy(i)} * p.weight(i - first);
      mean_u += du / width;
      mean_uz += du * z_of(i) / width;
      u_magnitude += std::fabs(du) / width;
      uz_magnitude += std::fabs(du * z_of(i)) / width;
      worst_z_error = std::max(worst_z_error, z_error(i));
    }
    for (int64_t i = first; i < first + n; ++i) {
      const auto column = static_cast<size_t>(i - first);
      const double w = p.weight(i - first);
      const double b = with.bias ? p.bias(i - first) : 0.0F;
      const double y = z_of(i) * w + b;
      ASSERT_NEAR(p.y(i), y,
                  testing::HalfUlp<T>(y) * 1.001 + std::fabs(w) * z_error(i) + u * std::fabs(y));
      const double passed = with.residual ? double{p.dsum(i)} : 0.0;
      const double dh = r * (p.dy(i) * w - mean_u - z_of(i) * mean_uz) + passed;
      const double scale =
          r * (std::fabs(p.dy(i) * w) + u_magnitude + std::fabs(z_of(i)) * uz_magnitude);
      const double error = scale * (2 * sum_error + r_error / r + 8 * u) +
                           r * (z_error(i) * std::fabs(mean_uz) +
                                (std::fabs(z_of(i)) + z_error(i)) * u_magnitude * worst_z_error) +
                           u * std::fabs(passed);
      ASSERT_NEAR(p.dh(i), dh, testing::HalfUlp<T>(dh) * 1.001 + error);
      dweight[column] += double{p.dy(i)} * z_of(i);
      dweight_magnitude[column] += std::fabs(double{p.dy(i)}) * (std::fabs(z_of(i)) + 1);
      dbias[column] += p.dy(i);
      dbias_magnitude[column] += std::fabs(double{p.dy(i)});
    }
  }
  // Roundings of a sum by chunks, and of every z (whose error is at most that of values near 1).
  const double rows = static_cast<double>(RowChunkRows(p.tokens) + RowChunks(p.tokens));
  for (int64_t i = 0; i < n; ++i) {
    const auto column = static_cast<size_t>(i);
    ASSERT_NEAR(p.dweight(i), dweight[column],
                testing::HalfUlp<T>(dweight[column]) * 1.001 +
                    dweight_magnitude[column] * (u * rows + 8 * sum_error + 1e-6));
    if (with.bias) {
      ASSERT_NEAR(
          p.dbias(i), dbias[column],
          testing::HalfUlp<T>(dbias[column]) * 1.001 + dbias_magnitude[column] * u * (rows + 2));
    }
  }
}

template <class T>
class LayerNorm : public ::testing::Test {};
using Types = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(LayerNorm, Types);

TYPED_TEST(LayerNorm, FollowsTheFormulaForEveryWidthAndAlignment) {
  EachVariant([](SimdLevel) {
    // The last is longer than the room that is kept for a row.
    for (const int64_t hidden : {4, 15, 16, 17, 48, 63, 64, 65, 80, 127, 768, 1000, 8200}) {
      for (const int64_t tokens : {1, 5, 40}) {
        if (hidden > 1000 && tokens > 5) {
          continue;
        }
        for (const With with : {With{}, With{.residual = true}, With{.bias = true}, kEverything}) {
          Problem<TypeParam> p(tokens, hidden, tokens == 5 ? 1 : 0);
          p.Forward(with, SerialFor);
          p.Backward(with, SerialFor);
          ExpectFormula(p, with);
          ASSERT_TRUE(p.GuardsIntact()) << tokens << " x " << hidden;
          if (::testing::Test::HasFatalFailure()) {
            FAIL() << tokens << " x " << hidden << (with.residual ? " residual" : "")
                   << (with.bias ? " bias" : "");
          }
        }
      }
    }
  });
}

TYPED_TEST(LayerNorm, GivesTheSameBitsInEveryVariantAndSplit) {
  SetVariantForTesting(SimdLevel::kScalar);
  Problem<TypeParam> oracle(1500, 100);  // More rows than the smallest chunks hold.
  oracle.Forward(kEverything, SerialFor);
  oracle.Backward(kEverything, SerialFor);
  EachVariant([&](SimdLevel) {
    for (const testing::Split& split : testing::Splits()) {
      Problem<TypeParam> other(1500, 100, 3);
      other.Forward(kEverything, split);
      other.Backward(kEverything, split);
      ASSERT_TRUE(other.SameBits(oracle)) << split.threads << " threads";
    }
  });
}

TYPED_TEST(LayerNorm, WorksInPlace) {
  Problem<TypeParam> apart(33, 65);
  apart.Forward(kEverything, SerialFor);
  apart.Backward(kEverything, SerialFor);
  Problem<TypeParam> p(33, 65);
  LayerNormForwardCpu(LayerNormForwardArgs<TypeParam>{.tokens = 33,
                                                      .hidden = 65,
                                                      .eps = kEps,
                                                      .x = p.x.get(),
                                                      .residual = p.residual.get(),
                                                      .weight = p.weight.get(),
                                                      .bias = p.bias.get(),
                                                      .sum = p.x.get(),
                                                      .y = p.y.get(),
                                                      .mean = p.mean.get(),
                                                      .rstd = p.rstd.get()},
                      SerialFor);
  EXPECT_TRUE(p.x.SameBits(apart.sum));
  EXPECT_TRUE(p.y.SameBits(apart.y));
  LayerNormBackwardCpu(LayerNormBackwardArgs<TypeParam>{.tokens = 33,
                                                        .hidden = 65,
                                                        .h = p.x.get(),
                                                        .weight = p.weight.get(),
                                                        .mean = p.mean.get(),
                                                        .rstd = p.rstd.get(),
                                                        .dy = p.dy.get(),
                                                        .dsum = p.dsum.get(),
                                                        .dh = p.dsum.get(),
                                                        .dweight = p.dweight.get(),
                                                        .dbias = p.dbias.get(),
                                                        .workspace = p.workspace.get()},
                       SerialFor);
  EXPECT_TRUE(p.dsum.SameBits(apart.dh));
  EXPECT_TRUE(p.dweight.SameBits(apart.dweight));
  EXPECT_TRUE(p.dbias.SameBits(apart.dbias));
}

TYPED_TEST(LayerNorm, WritesPastTheCachesTheSameBits) {
  const int64_t rows = 9000;  // 9000 x 1001 is above the streaming threshold in both dtypes.
  Problem<TypeParam> many(rows, 1001);
  many.Forward(kEverything, SerialFor);
  many.Backward(kEverything, SerialFor);
  Problem<TypeParam> one(1, 1001);
  for (const int64_t row : {int64_t{0}, int64_t{17}, rows - 1}) {
    std::copy_n(many.x.get() + row * 1001, 1001, one.x.get());
    std::copy_n(many.residual.get() + row * 1001, 1001, one.residual.get());
    std::copy_n(many.dy.get() + row * 1001, 1001, one.dy.get());
    std::copy_n(many.dsum.get() + row * 1001, 1001, one.dsum.get());
    one.Forward(kEverything, SerialFor);
    one.Backward(kEverything, SerialFor);
    const size_t bytes = 1001 * sizeof(TypeParam);
    EXPECT_TRUE(testing::SameBytes(one.y.get(), many.y.get() + row * 1001, bytes));
    EXPECT_TRUE(testing::SameBytes(one.sum.get(), many.sum.get() + row * 1001, bytes));
    EXPECT_TRUE(testing::SameBytes(one.dh.get(), many.dh.get() + row * 1001, bytes));
  }
}

TEST(LayerNormOffset, AMeanFarFromZeroCostsTheVarianceNothing) {
  EachVariant([](SimdLevel) {
    Problem<float> p(3, 1024);
    p.x.Fill(7, 1.0F, 4096.0F);  // One-pass sums of squares would keep no digit of the variance.
    p.Forward({}, SerialFor);
    p.Backward({}, SerialFor);
    for (int64_t row = 0; row < 3; ++row) {
      double mean = 0;
      double squares = 0;
      for (int64_t i = 0; i < 1024; ++i) {
        mean += double{p.x(row * 1024 + i)} / 1024;
      }
      for (int64_t i = 0; i < 1024; ++i) {
        squares += (p.x(row * 1024 + i) - mean) * (p.x(row * 1024 + i) - mean);
      }
      const double rstd = 1 / std::sqrt(squares / 1024 + double{kEps});
      EXPECT_NEAR(p.rstd(row), rstd, 2e-5 * rstd);
    }
  });
}

TYPED_TEST(LayerNorm, KeepsNanAndInfinityToTheirRow) {
  EachVariant([](SimdLevel) {
    Problem<TypeParam> p(4, 33);
    testing::Assign(p.x[33 + 32], testing::kNan);
    testing::Assign(p.x[99], testing::kInf);
    p.Forward({}, SerialFor);
    for (int64_t i = 0; i < 33; ++i) {
      EXPECT_TRUE(std::isfinite(p.y(i)));
      EXPECT_TRUE(std::isnan(p.y(33 + i)));
      EXPECT_TRUE(std::isfinite(p.y(66 + i)));
      EXPECT_TRUE(std::isnan(p.y(99 + i)));
    }
  });
}

TYPED_TEST(LayerNorm, TakesNoTokensAndGivesZeroGradients) {
  Problem<TypeParam> p(0, 20);
  p.Forward(kEverything, SerialFor);
  p.Backward(kEverything, SerialFor);
  for (int64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(p.dweight(i), 0.0F);
    EXPECT_EQ(p.dbias(i), 0.0F);
  }
}

}  // namespace
}  // namespace dtrain::kernels::layernorm_test
