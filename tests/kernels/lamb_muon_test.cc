// The optimizers that look at whole tensors: LAMB's two passes and Muon's element-wise ends.
#include <vector>

#include "kernels/optimizer/grad_norm.h"
#include "kernels/optimizer/lamb.h"
#include "kernels/optimizer/muon.h"
#include "tests/kernels/kernel_testing.h"

namespace dtrain::kernels::lamb_muon_test {
namespace {

using testing::Buffer;
using testing::EachVariant;

LambOptions Lamb() {
  return {.lr = 2e-2,
          .beta1 = 0.8,
          .beta2 = 0.95,
          .eps = 1e-6,
          .weight_decay = 0.1,
          .grad_scale = 0.37,
          .grad_limit = 0.9,
          .step = 3};
}

struct LambBuffers {
  explicit LambBuffers(int64_t n) : p(n, 1), g(n, 1), m(n, 1), v(n, 1), out(n, 1) {
    p.Fill(1, 2.0F);
    g.Fill(2, 3.0F);
    m.Fill(3, 0.1F);
    v.Fill(4, 0.01F, 0.0101F);
  }
  // One tensor that begins at the layout's element `offset`; gives its trust ratio.
  double Update(int64_t offset, ParallelFor parallel_for) {
    std::vector<LambSums> sums(static_cast<size_t>(NormBlocks(offset, p.size())));
    LambMomentsCpu(p.size(), offset, p.get(), g.get(), m.get(), v.get(), sums.data(), Lamb(),
                   parallel_for);
    LambSums all;
    for (const LambSums& block : sums) {
      all.weights += block.weights;
      all.updates += block.updates;
    }
    const double trust = LambTrust(all, Lamb());
    LambApplyCpu(p.size(), p.get(), m.get(), v.get(), out.get(), trust, Lamb(), parallel_for);
    return trust;
  }
  Buffer<float> p, g, m, v;
  Buffer<BFloat16> out;
};

TEST(Lamb, TakesTheLearningRateAsTheStepWithoutBiasCorrection) {
  LambOptions options = Lamb();
  options.bias_correction = false;
  EXPECT_EQ(MakeLambStepScalars(options).step_size, options.lr);
}

TEST(Lamb, FollowsTheFormula) {
  EachVariant([](SimdLevel) {
    for (const int64_t n : {1, 15, 17, 4096, 9001}) {
      const LambBuffers before(n);
      LambBuffers after(n);
      const double trust = after.Update(4000, SerialFor);
      std::vector<double> u(static_cast<size_t>(n));
      double weights = 0;
      double updates = 0;
      for (int64_t i = 0; i < n; ++i) {
        const double g = std::clamp(before.g(i) * 0.37, -0.9, 0.9);
        const double m = 0.8 * before.m(i) + 0.2 * g;
        const double v = 0.95 * before.v(i) + 0.05 * g * g;
        // m and v are a few roundings of their terms away.
        ASSERT_NEAR(after.m(i), m, 4 * testing::Ulp32(std::max(std::fabs(m), std::fabs(g))));
        ASSERT_NEAR(after.v(i), v, 8 * 0x1p-24 * v);
        u[static_cast<size_t>(i)] = m / (std::sqrt(v) + 1e-6) + 0.1 * before.p(i);
        weights += double{before.p(i)} * before.p(i);
        updates += u[static_cast<size_t>(i)] * u[static_cast<size_t>(i)];
      }
      const double exact = std::clamp(std::sqrt(weights / updates), 0.01, 10.0);
      ASSERT_NEAR(trust, exact, 1e-6 * exact) << n;
      const double step = 2e-2 * std::sqrt(1 - 0.95 * 0.95 * 0.95) / (1 - 0.8 * 0.8 * 0.8);
      for (int64_t i = 0; i < n; ++i) {
        const double change = step * exact * u[static_cast<size_t>(i)];
        // g - m cancels, so u is relative to what a large gradient would have made of it.
        const double error = 8 * testing::Ulp32(step * exact * 4) + testing::Ulp32(before.p(i));
        ASSERT_NEAR(after.p(i), before.p(i) - change, error) << i;
        ASSERT_EQ(after.out[i].bits, ToBFloat16(after.p(i)).bits) << i;
      }
      ASSERT_TRUE(after.p.GuardIntact() && after.m.GuardIntact() && after.v.GuardIntact());
    }
  });
}

TEST(Lamb, GivesTheSameBitsInEveryVariantAndSplit) {
  SetVariantForTesting(SimdLevel::kScalar);
  LambBuffers oracle(70001);
  oracle.Update(100, SerialFor);
  EachVariant([&](SimdLevel) {
    for (const testing::Split& split : testing::Splits()) {
      LambBuffers other(70001);
      other.Update(100, split);
      ASSERT_TRUE(other.p.SameBits(oracle.p) && other.m.SameBits(oracle.m) &&
                  other.v.SameBits(oracle.v) && other.out.SameBits(oracle.out));
    }
  });
}

TEST(Lamb, TrustIsLimitedAndOneWithoutNorms) {
  const LambOptions options;
  EXPECT_EQ(LambTrust({.weights = 4, .updates = 1}, options), 2);
  EXPECT_EQ(LambTrust({.weights = 1e6, .updates = 1}, options), 10);
  EXPECT_EQ(LambTrust({.weights = 1, .updates = 1e9}, options), 0.01);
  EXPECT_EQ(LambTrust({.weights = 0, .updates = 1}, options), 1);
  EXPECT_EQ(LambTrust({.weights = 1, .updates = 0}, options), 1);
}

struct MuonBuffers {
  explicit MuonBuffers(int64_t n) : p(n, 3), g(n, 3), s(n, 3), direction(n, 3), out(n, 3) {
    p.Fill(1, 2.0F);
    g.Fill(2, 3.0F);
    s.Fill(3, 1.0F);
  }
  void Update(bool nesterov, ParallelFor parallel_for) {
    const MuonOptions options{.lr = 0.1,
                              .momentum = 0.9,
                              .weight_decay = 0.2,
                              .nesterov = nesterov,
                              .grad_scale = 0.5,
                              .grad_limit = 1};
    MuonDirectionCpu(p.size(), g.get(), s.get(), direction.get(), options, parallel_for);
    MuonApplyCpu(p.size(), p.get(), direction.get(), out.get(), 1.5, options, parallel_for);
  }
  Buffer<float> p, g, s, direction;
  Buffer<BFloat16> out;
};

TEST(Muon, FollowsTheFormula) {
  EachVariant([](SimdLevel) {
    for (const bool nesterov : {true, false}) {
      for (const int64_t n : testing::OddSizes()) {
        const MuonBuffers before(n);
        MuonBuffers after(n);
        after.Update(nesterov, SerialFor);
        for (int64_t i = 0; i < n; ++i) {
          const double g = std::clamp(before.g(i) * 0.5, -1.0, 1.0);
          const double s = 0.9 * before.s(i) + 0.1 * g;
          const double d = nesterov ? g + 0.9 * (s - g) : s;
          const double error = 4 * testing::Ulp32(2.0);  // Roundings of terms up to 2.
          ASSERT_NEAR(after.s(i), s, error);
          ASSERT_NEAR(after.direction(i), d, error);
          ASSERT_NEAR(after.p(i), before.p(i) - 0.1 * (0.2 * before.p(i) + 1.5 * d), error);
          ASSERT_EQ(after.out[i].bits, ToBFloat16(after.p(i)).bits);
        }
        ASSERT_TRUE(after.p.GuardIntact() && after.s.GuardIntact() &&
                    after.direction.GuardIntact() && after.out.GuardIntact());
      }
    }
  });
}

TEST(Muon, GivesTheSameBitsInEveryVariantAndSplit) {
  SetVariantForTesting(SimdLevel::kScalar);
  MuonBuffers oracle(70001);
  oracle.Update(true, SerialFor);
  EachVariant([&](SimdLevel) {
    for (const testing::Split& split : testing::Splits()) {
      MuonBuffers other(70001);
      other.Update(true, split);
      ASSERT_TRUE(other.p.SameBits(oracle.p) && other.s.SameBits(oracle.s) &&
                  other.out.SameBits(oracle.out));
    }
  });
}

}  // namespace
}  // namespace dtrain::kernels::lamb_muon_test
