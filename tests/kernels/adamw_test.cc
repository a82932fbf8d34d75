#include "kernels/optimizer/adamw.h"

#include "tests/kernels/kernel_testing.h"

namespace dtrain::kernels::adamw_test {
namespace {

using testing::Buffer;
using testing::EachVariant;

AdamWOptions Options() {
  return {.lr = 3e-3,
          .beta1 = 0.9,
          .beta2 = 0.95,
          .eps = 1e-8,
          .weight_decay = 0.1,
          .grad_scale = 0.37,
          .step = 11};
}

// Parameters and moments as they are in a run: v is positive.
template <class G>
struct State {
  explicit State(int64_t n, int64_t shift = 0)
      : p(n, shift), m(n, shift), v(n, shift), g(n, shift), out(n, shift) {
    p.Fill(1, 2.0F);
    m.Fill(2, 0.1F);
    v.Fill(3, 0.01F, 0.0101F);
    g.Fill(4, 3.0F);
  }
  void Update(const AdamWOptions& options, bool copy_out, ParallelFor parallel_for) {
    BFloat16* const copy = copy_out ? out.get() : nullptr;
    if constexpr (sizeof(G) == 4) {
      AdamWCpu(p.size(), p.get(), g.get(), m.get(), v.get(), copy, options, parallel_for);
    } else {
      AdamWCpuBf16Grad(p.size(), p.get(), g.get(), m.get(), v.get(), copy, options, parallel_for);
    }
  }
  bool SameBits(const State& other) const {
    return p.SameBits(other.p) && m.SameBits(other.m) && v.SameBits(other.v) &&
           out.SameBits(other.out);
  }
  bool GuardsIntact() const {
    return p.GuardIntact() && m.GuardIntact() && v.GuardIntact() && out.GuardIntact();
  }
  Buffer<float> p, m, v;
  Buffer<G> g;
  Buffer<BFloat16> out;
};

// torch's formula in fp64.
template <class G>
void ExpectFormula(const State<G>& before, const State<G>& after, const AdamWOptions& o) {
  const double correction1 = 1 - std::pow(o.beta1, static_cast<double>(o.step));
  const double correction2 = 1 - std::pow(o.beta2, static_cast<double>(o.step));
  for (int64_t i = 0; i < before.p.size(); ++i) {
    const double g = double{before.g(i)} * o.grad_scale;
    const double m = o.beta1 * before.m(i) + (1 - o.beta1) * g;
    const double v = o.beta2 * before.v(i) + (1 - o.beta2) * g * g;
    const double update = o.lr / correction1 * m / (std::sqrt(v / correction2) + o.eps);
    const double p = double{before.p(i)} * (1 - o.lr * o.weight_decay) - update;
    // m: g, g - m and the sum are rounded once each, relative to the larger of the two.
    ASSERT_NEAR(after.m(i), m, 2 * testing::Ulp32(std::max(std::fabs(m), std::fabs(g)))) << i;
    // v: all terms are positive. With u = 2^-24: g carries 2u (scale, product), g g twice that, its
    // constant and products 3u, the sum u.
    ASSERT_NEAR(after.v(i), v, 8 * 0x1p-24 * v) << i;
    // p: rounded once, plus the update's own error of a few of its ulps (m cancels, hence g).
    const double update_error =
        4 * testing::Ulp32(o.lr / correction1 * std::max(std::fabs(m), std::fabs(g)) /
                           std::sqrt(v / correction2));
    ASSERT_NEAR(after.p(i), p, 0.5 * testing::Ulp32(p) + update_error) << i;
  }
}

template <class G>
class AdamW : public ::testing::Test {};
using Gradients = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(AdamW, Gradients);

TYPED_TEST(AdamW, FollowsTheFormulaAtEverySizeAndAlignment) {
  EachVariant([](SimdLevel) {
    for (const int64_t n : testing::OddSizes()) {
      for (const int64_t shift : {0, 1, 3}) {
        const State<TypeParam> before(n, shift);
        State<TypeParam> after(n, shift);
        after.Update(Options(), true, SerialFor);
        ExpectFormula(before, after, Options());
        ASSERT_TRUE(after.GuardsIntact()) << "wrote past the end, n " << n;
        for (int64_t i = 0; i < n; ++i) {
          ASSERT_EQ(after.out[i].bits, ToBFloat16(after.p(i)).bits) << i;
        }
      }
    }
  });
}

TYPED_TEST(AdamW, GivesTheSameBitsInEveryVariantAndSplit) {
  const int64_t n = 70001;
  SetVariantForTesting(SimdLevel::kScalar);
  State<TypeParam> oracle(n);
  oracle.Update(Options(), true, SerialFor);
  EachVariant([&](SimdLevel) {
    for (const testing::Split& split : testing::Splits()) {
      State<TypeParam> other(n, 5);
      other.Update(Options(), true, split);
      ASSERT_TRUE(other.SameBits(oracle)) << split.threads << " threads";
    }
  });
}

TYPED_TEST(AdamW, WritesPastTheCachesTheSameBits) {
  const int64_t n = (9 << 20) + 3;  // The copy-out is above the streaming threshold.
  State<TypeParam> whole(n, 1);
  whole.Update(Options(), true, SerialFor);
  for (int64_t i = 0; i < n; ++i) {
    ASSERT_EQ(whole.out[i].bits, ToBFloat16(whole.p(i)).bits) << i;
  }
  ASSERT_TRUE(whole.GuardsIntact());
}

TYPED_TEST(AdamW, LeavesTheCopyAloneWhenThereIsNone) {
  State<TypeParam> with(1000);
  State<TypeParam> without(1000);
  with.Update(Options(), true, SerialFor);
  without.Update(Options(), false, SerialFor);
  EXPECT_TRUE(with.p.SameBits(without.p));
  EXPECT_TRUE(without.out.SameBits(State<TypeParam>(1000).out));
}

TEST(AdamWFloat, AddsAnL2DecayToTheGradientAndLimitsIt) {
  // torch.optim.Adam's weight_decay: as if the gradient had it already. The limit comes first.
  EachVariant([](SimdLevel) {
    AdamWOptions options = Options();
    options.weight_decay = 0;
    options.grad_scale = 1;
    State<float> by_hand(1000);
    State<float> by_kernel(1000);
    for (int64_t i = 0; i < 1000; ++i) {
      by_hand.g[i] = std::fma(0.25F, by_hand.p[i], std::max(-0.5F, std::min(0.5F, by_hand.g[i])));
    }
    by_hand.Update(options, true, SerialFor);
    options.l2 = 0.25;
    options.grad_limit = 0.5;
    by_kernel.Update(options, true, SerialFor);
    EXPECT_TRUE(by_kernel.SameBits(by_hand));
  });
}

TEST(AdamWFloat, KeepsMomentsInBf16WithOneMoreRounding) {
  EachVariant([](SimdLevel) {
    for (const int64_t n : testing::OddSizes()) {
      Buffer<float> p(n, 3);
      Buffer<BFloat16> m(n, 3), v(n, 3), out(n, 3);
      p.Fill(1, 2.0F);
      m.Fill(2, 0.1F);
      v.Fill(3, 0.01F, 0.0101F);
      State<float> wide(n, 3);
      for (int64_t i = 0; i < n; ++i) {
        wide.m[i] = m(i);
        wide.v[i] = v(i);
      }
      AdamWCpuBf16State(n, p.get(), wide.g.get(), m.get(), v.get(), out.get(), Options(),
                        testing::Split{2, 1});
      wide.Update(Options(), true, SerialFor);
      ASSERT_TRUE(p.SameBits(wide.p) && out.SameBits(wide.out));
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(m[i].bits, ToBFloat16(wide.m(i)).bits) << i;
        ASSERT_EQ(v[i].bits, ToBFloat16(wide.v(i)).bits) << i;
      }
      ASSERT_TRUE(p.GuardIntact() && m.GuardIntact() && v.GuardIntact() && out.GuardIntact());
    }
  });
}

TEST(AdamWFloat, MatchesTorchOverThreeSteps) {
  // torch 2.11: AdamW([0.5, -1.25, 3, 1e-3], lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1,
  // fused=True).
  const float gradients[3][4] = {
      {0.1F, -0.2F, 1e-4F, 3.0F}, {0.05F, 0.3F, -2e-4F, -1.0F}, {-0.7F, 0.01F, 0.0F, 2.0F}};
  const float p_torch[] = {0x1.efcf8p-2F, -0x1.3da7fcp+0F, 0x1.7e669p+1F, -0x1.390b6ep-6F};
  const float m_torch[] = {-0x1.d63886p-5F, 0x1.82a994p-7F, -0x1.4c305ap-17F, 0x1.6978d6p-2F};
  const float v_torch[] = {0x1.9abf32p-6F, 0x1.8ec95cp-8F, 0x1.432740p-29F, 0x1.4ea7f0p-1F};
  EachVariant([&](SimdLevel) {
    float p[] = {0.5F, -1.25F, 3.0F, 1e-3F};
    float m[4] = {};
    float v[4] = {};
    for (int step = 1; step <= 3; ++step) {
      AdamWCpu(4, p, gradients[step - 1], m, v, nullptr,
               {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1, .step = step},
               SerialFor);
    }
    for (int i = 0; i < 4; ++i) {
      // Both sides round every step; 1e-6 is eight fp32 roundings.
      EXPECT_NEAR(p[i], p_torch[i], 1e-6 * std::fabs(p_torch[i])) << i;
      EXPECT_NEAR(m[i], m_torch[i], 1e-6 * std::fabs(m_torch[i])) << i;
      EXPECT_NEAR(v[i], v_torch[i], 1e-6 * std::fabs(v_torch[i])) << i;
    }
  });
}

TEST(AdamWFloat, KeepsItsPrecisionWhenTheDecayIsTiny) {
  // 1 - lr * weight_decay in fp32 would lose most of 1e-7; a change added to p does not.
  EachVariant([](SimdLevel) {
    float p = 1e6F;
    const float g = 0;
    float m = 0;
    float v = 0;
    AdamWCpu(1, &p, &g, &m, &v, nullptr, {.lr = 1e-3, .weight_decay = 1.5e-4}, SerialFor);
    EXPECT_FLOAT_EQ(p, 1e6F - 0.15F);
  });
}

TEST(AdamWFloat, PassesNanAndInfinityToTheirElementOnly) {
  EachVariant([](SimdLevel) {
    State<float> state(40);
    state.g[3] = testing::kNan;
    state.g[20] = testing::kInf;
    state.Update(Options(), true, SerialFor);
    for (int64_t i = 0; i < 40; ++i) {
      EXPECT_EQ(std::isfinite(state.p(i)), i != 3 && i != 20) << i;
      EXPECT_EQ(std::isfinite(state.out(i)), i != 3 && i != 20) << i;
    }
  });
}

TEST(AdamWFloat, StartsFromZeroMomentsWithoutDividingByZero) {
  float p = 1;
  const float g = 0;
  float m = 0;
  float v = 0;
  AdamWCpu(1, &p, &g, &m, &v, nullptr, {}, SerialFor);
  EXPECT_EQ(p, 1.0F);
}

TEST(AdamWScalars, HoldTheBiasCorrections) {
  const AdamWStepScalars s = MakeAdamWStepScalars(
      {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.999, .weight_decay = 0.5, .step = 2});
  EXPECT_FLOAT_EQ(s.one_minus_beta2, 1e-3F);
  EXPECT_FLOAT_EQ(s.step_size, static_cast<float>(1e-2 / (1 - 0.81)));
  EXPECT_FLOAT_EQ(s.inverse_sqrt_correction, static_cast<float>(1 / std::sqrt(1 - 0.998001)));
  EXPECT_FLOAT_EQ(s.decay, 5e-3F);
  EXPECT_EQ(s.skip, 0);
}

TEST(AdamWScalars, HoldNoneWithoutBiasCorrection) {
  const AdamWStepScalars s =
      MakeAdamWStepScalars({.lr = 1e-2, .step = 2, .bias_correction = false});
  EXPECT_EQ(s.step_size, 1e-2F);
  EXPECT_EQ(s.inverse_sqrt_correction, 1);
}

TEST(AdamWScalarsDeath, RefuseStepZero) { EXPECT_DEATH(MakeAdamWStepScalars({.step = 0}), "step"); }

}  // namespace
}  // namespace dtrain::kernels::adamw_test
