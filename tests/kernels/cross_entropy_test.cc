#include "kernels/layers/cross_entropy.h"

#include "tests/kernels/kernel_testing.h"

namespace dtrain::kernels::cross_entropy_test {
namespace {

using testing::Buffer;
using testing::EachVariant;

template <class T>
struct Problem {
  Problem(int64_t rows, int64_t width, CrossEntropyOptions with = {}, int64_t shift = 0)
      : tokens(rows),
        vocab(width),
        options(with),
        logits(rows * width, shift),
        gradient(rows * width, shift),
        losses(rows),
        lse(rows) {
    logits.Fill(1, 9.0F);
    SplitMix64 random(2);
    for (int64_t i = 0; i < rows; ++i) {
      const bool ignored = i % 5 == 3;
      targets.push_back(ignored ? options.ignore_index
                                : static_cast<int64_t>(random.Below(static_cast<uint64_t>(width))));
    }
  }
  CrossEntropyArgs<T> Args() {
    return {.tokens = tokens,
            .vocab = vocab,
            .options = options,
            .logits = logits.get(),
            .targets = targets.data(),
            .losses = losses.get(),
            .lse = lse.get(),
            .gradient = gradient.get(),
            .gradient_scale = 0.5F};
  }
  bool SameBits(const Problem& other) const {
    return losses.SameBits(other.losses) && lse.SameBits(other.lse) &&
           gradient.SameBits(other.gradient);
  }
  int64_t tokens, vocab;
  CrossEntropyOptions options;
  Buffer<T> logits, gradient;
  Buffer<float> losses, lse;
  std::vector<int64_t> targets;
};

// fp64 formulas. lse: exponentials within 2 ulp and a sum of `vocab` of them in 64 lanes, relative
// to the sum, then one rounding. e^(x - lse) adds the rounding of lse and of the difference.
template <class T>
void ExpectFormula(const Problem<T>& p) {
  const double s = p.options.label_smoothing;
  const double z = p.options.z_loss;
  const auto vocab = static_cast<double>(p.vocab);
  for (int64_t row = 0; row < p.tokens; ++row) {
    const int64_t y = p.targets[static_cast<size_t>(row)];
    const auto x = [&](int64_t j) { return double{p.logits(row * p.vocab + j)}; };
    if (y == p.options.ignore_index) {
      ASSERT_EQ(p.losses(row), 0.0F);
      for (int64_t j = 0; j < p.vocab; ++j) {
        ASSERT_EQ(p.gradient(row * p.vocab + j), 0.0F);
      }
      continue;
    }
    double sum = 0;
    double logits = 0;
    for (int64_t j = 0; j < p.vocab; ++j) {
      sum += std::exp(x(j));
      logits += x(j);
    }
    const double lse = std::log(sum);
    const double tolerance = 3e-6 + 2e-7 * std::fabs(lse);
    ASSERT_NEAR(p.lse(row), lse, tolerance);
    const double loss = lse - (1 - s) * x(y) - s / vocab * logits + z * lse * lse;
    ASSERT_NEAR(p.losses(row), loss, (1 + 2 * z * std::fabs(lse)) * tolerance + 1e-6);
    for (int64_t j = 0; j < p.vocab; ++j) {
      const double probability = std::exp(x(j) - lse);
      const double dx = 0.5 * (probability * (1 + 2 * z * lse) - (j == y ? 1 - s : 0) - s / vocab);
      ASSERT_NEAR(p.gradient(row * p.vocab + j), dx,
                  testing::HalfUlp<T>(dx) * 1.01 + 2 * tolerance * probability + 1e-7)
          << "row " << row << " column " << j;
    }
  }
}

const CrossEntropyOptions kEverything = {
    .ignore_index = -1, .z_loss = 1e-2F, .label_smoothing = 0.1F};

template <class T>
class CrossEntropy : public ::testing::Test {};
using Types = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(CrossEntropy, Types);

TYPED_TEST(CrossEntropy, FollowsTheFormulaAtEveryWidthAndAlignment) {
  EachVariant([](SimdLevel) {
    for (const int64_t vocab : {1, 2, 7, 16, 17, 63, 64, 65, 100, 2047, 2048, 2049, 5001}) {
      for (const int64_t shift : {0, 3}) {
        for (const CrossEntropyOptions& options : {CrossEntropyOptions{}, kEverything}) {
          Problem<TypeParam> p(6, vocab, options, shift);
          CrossEntropyForwardCpu(p.Args(), SerialFor);
          ExpectFormula(p);
          ASSERT_TRUE(p.gradient.GuardIntact() && p.losses.GuardIntact()) << vocab;
        }
      }
    }
  });
}

TYPED_TEST(CrossEntropy, GivesTheSameBitsInEveryVariantSplitAndOrder) {
  SetVariantForTesting(SimdLevel::kScalar);
  Problem<TypeParam> oracle(40, 3001, kEverything);
  CrossEntropyForwardCpu(oracle.Args(), SerialFor);
  EachVariant([&](SimdLevel) {
    for (const testing::Split& split : testing::Splits()) {
      Problem<TypeParam> other(40, 3001, kEverything, 5);
      CrossEntropyForwardCpu(other.Args(), split);
      ASSERT_TRUE(other.SameBits(oracle)) << split.threads << " threads";
    }
    Problem<TypeParam> apart(40, 3001, kEverything);  // Losses alone, then all in place.
    CrossEntropyArgs<TypeParam> args = apart.Args();
    args.gradient = nullptr;
    CrossEntropyForwardCpu(args, SerialFor);
    EXPECT_TRUE(apart.losses.SameBits(oracle.losses));
    args.gradient = apart.logits.get();
    CrossEntropyForwardCpu(args, SerialFor);
    EXPECT_TRUE(apart.losses.SameBits(oracle.losses));
    EXPECT_TRUE(apart.logits.SameBits(oracle.gradient));
  });
}

TYPED_TEST(CrossEntropy, WritesPastTheCachesTheSameBits) {
  Problem<TypeParam> large(100, 90'001);  // More than kStreamBytesMin, every row aligned anew.
  CrossEntropyForwardCpu(large.Args(), SerialFor);
  CrossEntropyArgs<TypeParam> args = large.Args();
  args.gradient = large.logits.get();
  CrossEntropyForwardCpu(args, SerialFor);
  EXPECT_TRUE(large.gradient.SameBits(large.logits));
}

TYPED_TEST(CrossEntropy, TotalsCountWhatIsNotIgnored) {
  Problem<TypeParam> p(10, 33);
  CrossEntropyForwardCpu(p.Args(), SerialFor);
  const CrossEntropyTotals totals =
      CrossEntropyTotalsCpu(p.tokens, p.losses.get(), p.targets.data(), -100);
  double sum = 0;
  for (int64_t i = 0; i < 10; ++i) {
    sum += p.losses(i);
  }
  EXPECT_EQ(totals.count, 8);
  EXPECT_EQ(totals.sum, sum);
}

TEST(CrossEntropySpecial, ExtremeLogitsGiveWhatTheLimitIs) {
  EachVariant([](SimdLevel) {
    struct Row {
      std::vector<float> logits;
      int64_t target;
      float loss;
    };
    std::vector<float> masked(5000, -testing::kInf);  // Whole pieces of -infinity come first.
    masked[4999] = 3.0F;
    std::vector<float> with_nan(100, 0.0F);
    with_nan[70] = testing::kNan;
    const std::vector<Row> rows = {{{-1e4F, -1e4F}, 0, std::log(2.0F)},
                                   {{1e30F, 0.0F}, 0, 0.0F},
                                   {{1e30F, 0.0F}, 1, 1e30F},
                                   {{-200.0F, -200.0F, -200.0F}, 1, std::log(3.0F)},
                                   {masked, 4999, 0.0F},
                                   {masked, 0, testing::kInf},
                                   {with_nan, 3, testing::kNan},
                                   {{testing::kInf, 0.0F}, 1, testing::kNan},
                                   {{-testing::kInf, -testing::kInf}, 0, testing::kNan},
                                   {{1.0F, 2.0F}, 2, testing::kNan},
                                   {{1.0F, 2.0F}, -7, testing::kNan},
                                   {{testing::kNan, 2.0F}, -100, 0.0F}};
    for (const Row& row : rows) {
      float loss = 5;
      float lse = 5;
      std::vector<float> gradient(row.logits.size(), 5.0F);
      CrossEntropyForwardCpu({.tokens = 1,
                              .vocab = static_cast<int64_t>(row.logits.size()),
                              .logits = row.logits.data(),
                              .targets = &row.target,
                              .losses = &loss,
                              .lse = &lse,
                              .gradient = gradient.data()},
                             SerialFor);
      if (std::isnan(row.loss)) {
        EXPECT_TRUE(std::isnan(loss)) << row.logits[0] << " target " << row.target;
        EXPECT_TRUE(std::isnan(gradient[0])) << row.logits[0] << " target " << row.target;
      } else if (std::isinf(row.loss)) {
        EXPECT_EQ(loss, row.loss);
      } else {
        EXPECT_NEAR(loss, row.loss, 1e-3F + 1e-6F * row.loss) << row.logits[0];
        EXPECT_EQ(std::isnan(gradient[0]), false);
      }
    }
  });
}

}  // namespace
}  // namespace dtrain::kernels::cross_entropy_test
