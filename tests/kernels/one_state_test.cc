// SGD, Lion and Adagrad against their formulas in fp64, and against themselves: the same bits in
// every variant and split.
#include "kernels/optimizer/adagrad.h"
#include "kernels/optimizer/lion.h"
#include "kernels/optimizer/sgd.h"
#include "tests/kernels/kernel_testing.h"

namespace dtrain::kernels::one_state_test {
namespace {

using testing::Buffer;
using testing::EachVariant;

// Weights, a state and gradients as they are in a run.
template <class S>
struct Buffers {
  explicit Buffers(int64_t n, int64_t shift = 0)
      : p(n, shift), s(n, shift), g(n, shift), out(n, shift) {
    p.Fill(1, 2.0F);
    s.Fill(2, 0.05F, 0.06F);
    g.Fill(3, 3.0F);
  }
  MutableFlat state() { return {s.get(), sizeof(S) == 4 ? DType::kFloat32 : DType::kBFloat16}; }
  bool SameBits(const Buffers& other) const {
    return p.SameBits(other.p) && s.SameBits(other.s) && out.SameBits(other.out);
  }
  bool GuardsIntact() const { return p.GuardIntact() && s.GuardIntact() && out.GuardIntact(); }
  Buffer<float> p;
  Buffer<S> s;
  Buffer<float> g;
  Buffer<BFloat16> out;
};

struct Exact {
  double p = 0;
  double s = 0;
  double largest = 0;  // The largest term that was added; errors are relative to it.
};

constexpr double kScale = 0.37;
constexpr double kLimit = 0.9;  // Reached by one gradient in five.

double Gradient(double g) { return std::clamp(g * kScale, -kLimit, kLimit); }

struct SgdCase {
  static constexpr bool kNesterov = true;
  static SgdOptions Options() {
    return {.lr = 0.05,
            .momentum = 0.9,
            .weight_decay = 0.1,
            .nesterov = true,
            .grad_scale = kScale,
            .grad_limit = kLimit,
            .step = 5};
  }
  template <class S>
  static void Update(Buffers<S>& b, BFloat16* out, ParallelFor parallel_for) {
    SgdCpu(b.p.size(), b.p.get(), b.g.get(), b.state(), out, Options(), parallel_for);
  }
  static Exact Formula(double p, double s, double gradient) {
    const double g = Gradient(gradient) + 0.1 * p;
    const double next = 0.9 * s + g;
    return {p - 0.05 * (g + 0.9 * next), next, std::fabs(p) + std::fabs(g) + std::fabs(s)};
  }
};

struct DampenedSgdCase {
  static SgdOptions Options() {
    return {.lr = 0.05,
            .momentum = 0.8,
            .dampening = 0.3,
            .grad_scale = kScale,
            .grad_limit = kLimit,
            .step = 2};
  }
  template <class S>
  static void Update(Buffers<S>& b, BFloat16* out, ParallelFor parallel_for) {
    SgdCpu(b.p.size(), b.p.get(), b.g.get(), b.state(), out, Options(), parallel_for);
  }
  static Exact Formula(double p, double s, double gradient) {
    const double next = 0.8 * s + 0.7 * Gradient(gradient);
    return {p - 0.05 * next, next, std::fabs(p) + std::fabs(gradient) + std::fabs(s)};
  }
};

struct LionCase {
  template <class S>
  static void Update(Buffers<S>& b, BFloat16* out, ParallelFor parallel_for) {
    LionCpu(b.p.size(), b.p.get(), b.g.get(), b.state(), out,
            {.lr = 3e-3,
             .beta1 = 0.9,
             .beta2 = 0.98,
             .weight_decay = 0.2,
             .grad_scale = kScale,
             .grad_limit = kLimit},
            parallel_for);
  }
  static Exact Formula(double p, double s, double gradient) {
    const double g = Gradient(gradient);
    const double c = 0.9 * s + 0.1 * g;
    const double sign = c > 0 ? 1 : c < 0 ? -1 : 0;
    return {p - 3e-3 * (0.2 * p + sign), 0.98 * s + 0.02 * g,
            std::fabs(p) + std::fabs(g) + std::fabs(s)};
  }
};

struct AdagradCase {
  template <class S>
  static void Update(Buffers<S>& b, BFloat16* out, ParallelFor parallel_for) {
    AdagradCpu(b.p.size(), b.p.get(), b.g.get(), b.state(), out,
               {.lr = 0.02,
                .lr_decay = 0.5,
                .eps = 1e-6,
                .weight_decay = 0.1,
                .grad_scale = kScale,
                .grad_limit = kLimit,
                .step = 4},
               parallel_for);
  }
  static Exact Formula(double p, double s, double gradient) {
    const double g = Gradient(gradient) + 0.1 * p;
    const double next = s + g * g;
    return {p - 0.02 / 2.5 * g / (std::sqrt(next) + 1e-6), next,
            std::fabs(p) + g * g + std::fabs(s)};
  }
};

template <class T>
class OneState : public ::testing::Test {};
using Cases = ::testing::Types<SgdCase, DampenedSgdCase, LionCase, AdagradCase>;
TYPED_TEST_SUITE(OneState, Cases);

template <class Case, class S>
void ExpectFormula(const Buffers<S>& before, const Buffers<S>& after) {
  for (int64_t i = 0; i < before.p.size(); ++i) {
    const Exact exact = Case::Formula(before.p(i), before.s(i), before.g(i));
    // A handful of fp32 roundings, each relative to the terms; a bf16 state is rounded once more.
    const double error = 6 * testing::Ulp32(exact.largest);
    ASSERT_NEAR(after.p(i), exact.p, error) << i;
    ASSERT_NEAR(after.s(i), exact.s, error + testing::HalfUlp<S>(exact.s)) << i;
  }
}

template <class Case, class S>
void FollowsTheFormula() {
  EachVariant([](SimdLevel) {
    for (const int64_t n : testing::OddSizes()) {
      for (const int64_t shift : {0, 3}) {
        const Buffers<S> before(n, shift);
        Buffers<S> after(n, shift);
        Case::Update(after, after.out.get(), SerialFor);
        ExpectFormula<Case, S>(before, after);
        ASSERT_TRUE(after.GuardsIntact()) << "wrote past the end, n " << n;
        for (int64_t i = 0; i < n; ++i) {
          ASSERT_EQ(after.out[i].bits, ToBFloat16(after.p(i)).bits) << i;
        }
      }
    }
  });
}

TYPED_TEST(OneState, FollowsTheFormulaAtEverySizeAndAlignment) {
  FollowsTheFormula<TypeParam, float>();
  FollowsTheFormula<TypeParam, BFloat16>();
}

template <class Case, class S>
void SameBitsEverywhere() {
  const int64_t n = 70001;
  SetVariantForTesting(SimdLevel::kScalar);
  Buffers<S> oracle(n);
  Case::Update(oracle, oracle.out.get(), SerialFor);
  EachVariant([&](SimdLevel) {
    for (const testing::Split& split : testing::Splits()) {
      Buffers<S> other(n, 5);
      Case::Update(other, other.out.get(), split);
      ASSERT_TRUE(other.SameBits(oracle)) << split.threads << " threads";
    }
  });
}

TYPED_TEST(OneState, GivesTheSameBitsInEveryVariantAndSplit) {
  SameBitsEverywhere<TypeParam, float>();
  SameBitsEverywhere<TypeParam, BFloat16>();
}

TYPED_TEST(OneState, LeavesTheCopyAloneWhenThereIsNone) {
  Buffers<float> with(1000);
  Buffers<float> without(1000);
  TypeParam::Update(with, with.out.get(), SerialFor);
  TypeParam::Update(without, nullptr, SerialFor);
  EXPECT_TRUE(with.p.SameBits(without.p));
  EXPECT_TRUE(without.out.SameBits(Buffers<float>(1000).out));
}

TEST(Sgd, WithoutMomentumNeedsNoState) {
  EachVariant([](SimdLevel) {
    for (const int64_t n : testing::OddSizes()) {
      Buffers<float> b(n, 1);
      const Buffers<float> before(n, 1);
      SgdCpu(n, b.p.get(), b.g.get(), {}, b.out.get(),
             {.lr = 0.1, .weight_decay = 0.5, .grad_scale = kScale}, SerialFor);
      for (int64_t i = 0; i < n; ++i) {
        const double p = before.p(i);
        ASSERT_NEAR(b.p(i), p - 0.1 * (before.g(i) * kScale + 0.5 * p), 4 * testing::Ulp32(2.0));
        ASSERT_EQ(b.out[i].bits, ToBFloat16(b.p(i)).bits) << i;
      }
      ASSERT_TRUE(b.GuardsIntact());
    }
  });
}

TEST(Sgd, TheFirstUpdateTakesTheWholeGradientAsItsState) {
  EachVariant([](SimdLevel) {
    float p = 1;
    const float g = 3;
    float s = 99;  // Must not be read in the first update.
    SgdCpu(1, &p, &g, {&s}, nullptr, {.lr = 0.5, .momentum = 0.9, .dampening = 0.4, .step = 1},
           SerialFor);
    EXPECT_EQ(s, 3.0F);
    EXPECT_EQ(p, 1 - 0.5F * 3);
  });
}

TEST(SgdDeath, RefusesNesterovWithoutMomentum) {
  EXPECT_DEATH(MakeSgdStepScalars({.nesterov = true}), "nesterov");
}

TEST(Lion, AnElementWithoutGradientAndMomentStays) {
  EachVariant([](SimdLevel) {
    float p[] = {1, 1, 1, 1};
    const float g[] = {0, -0.0F, 1e-42F, -1e-42F};
    float s[4] = {};
    LionCpu(4, p, g, {s}, nullptr, {.lr = 0.25}, SerialFor);
    EXPECT_EQ(p[0], 1.0F);
    EXPECT_EQ(p[1], 1.0F);
    EXPECT_EQ(p[2], 0.75F) << "the smallest gradient counts as much as the largest";
    EXPECT_EQ(p[3], 1.25F);
  });
}

TEST(GradientLimit, LetsNoElementBeyondItAndLeavesTheOthers) {
  EachVariant([](SimdLevel) {
    float p[] = {0, 0, 0, 0};
    const float g[] = {10, -10, 0.25F, testing::kInf};
    SgdCpu(4, p, g, {}, nullptr, {.lr = 1, .grad_limit = 0.5}, SerialFor);
    EXPECT_EQ(p[0], -0.5F);
    EXPECT_EQ(p[1], 0.5F);
    EXPECT_EQ(p[2], -0.25F);
    EXPECT_EQ(p[3], -0.5F);
  });
}

}  // namespace
}  // namespace dtrain::kernels::one_state_test
