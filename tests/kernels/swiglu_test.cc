#include "kernels/swiglu.h"

#include "tests/kernels/kernel_testing.h"

namespace dtrain::kernels {
namespace {

using testing::Buffer;
using testing::EachVariant;

template <class T>
struct Problem {
  explicit Problem(int64_t n, int64_t shift = 0)
      : count(n),
        gate(n, shift),
        up(n, shift),
        out(n, shift),
        dout(n, shift),
        dgate(n, shift),
        dup(n, shift) {
    gate.Fill(1, 12.0F);
    up.Fill(2, 2.0F);
    dout.Fill(3);
  }
  void Run(ParallelFor parallel_for) {
    SwiGluForwardCpu(
        SwiGluForwardArgs<T>{.count = count, .gate = gate.get(), .up = up.get(), .out = out.get()},
        parallel_for);
    SwiGluBackwardCpu(SwiGluBackwardArgs<T>{.count = count,
                                            .gate = gate.get(),
                                            .up = up.get(),
                                            .dout = dout.get(),
                                            .dgate = dgate.get(),
                                            .dup = dup.get()},
                      parallel_for);
  }
  bool SameBits(const Problem& other) const {
    return out.SameBits(other.out) && dgate.SameBits(other.dgate) && dup.SameBits(other.dup);
  }
  int64_t count;
  Buffer<T> gate, up, out, dout, dgate, dup;
};

// fp64 formulas. The sigmoid is within 4 ulp (exp 2; sum, reciprocal and product half each); each
// product adds half an ulp; then one rounding to T.
template <class T>
void ExpectFormula(const Problem<T>& p) {
  for (int64_t i = 0; i < p.count; ++i) {
    const double g = p.gate(i);
    const double s = 1 / (1 + std::exp(-g));
    const double out = g * s * p.up(i);
    const double slope = s * (1 + g / (1 + std::exp(g)));
    const double slope_magnitude = s * (1 + std::fabs(g) / (1 + std::exp(g)));
    const double dgate = double{p.dout(i)} * p.up(i) * slope;
    const double dup = double{p.dout(i)} * g * s;
    const double ulps = 6 * 0x1p-23;
    ASSERT_NEAR(p.out(i), out, testing::HalfUlp<T>(out) * 1.001 + ulps * std::fabs(out)) << g;
    ASSERT_NEAR(p.dup(i), dup, testing::HalfUlp<T>(dup) * 1.001 + ulps * std::fabs(dup)) << g;
    ASSERT_NEAR(p.dgate(i), dgate,
                testing::HalfUlp<T>(dgate) * 1.001 +
                    2 * ulps * std::fabs(double{p.dout(i)} * p.up(i)) * slope_magnitude)
        << g;
  }
}

template <class T>
class SwiGlu : public ::testing::Test {};
using Types = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(SwiGlu, Types);

TYPED_TEST(SwiGlu, FollowsTheFormulaAtEverySizeAndAlignment) {
  EachVariant([](SimdLevel) {
    for (const int64_t n : testing::OddSizes()) {
      for (const int64_t shift : {0, 3}) {
        Problem<TypeParam> p(n, shift);
        p.Run(SerialFor);
        ExpectFormula(p);
        ASSERT_TRUE(p.out.GuardIntact() && p.dgate.GuardIntact() && p.dup.GuardIntact()) << n;
      }
    }
  });
}

TYPED_TEST(SwiGlu, GivesTheSameBitsInEveryVariantAndSplit) {
  SetVariantForTesting(SimdLevel::kScalar);
  Problem<TypeParam> oracle(70'001);
  oracle.Run(SerialFor);
  EachVariant([&](SimdLevel) {
    for (const testing::Split& split : testing::Splits()) {
      Problem<TypeParam> other(70'001, 5);
      other.Run(split);
      ASSERT_TRUE(other.SameBits(oracle)) << split.threads << " threads";
    }
  });
}

TYPED_TEST(SwiGlu, WritesPastTheCachesTheSameBits) {
  const int64_t n = (9 << 20) + 5;
  Problem<TypeParam> large(n, 1);
  large.Run(SerialFor);
  Problem<TypeParam> small(5'000);
  std::copy_n(large.gate.get() + n - 5'000, 5'000, small.gate.get());
  std::copy_n(large.up.get() + n - 5'000, 5'000, small.up.get());
  std::copy_n(large.dout.get() + n - 5'000, 5'000, small.dout.get());
  small.Run(SerialFor);
  const size_t bytes = 5'000 * sizeof(TypeParam);
  EXPECT_TRUE(testing::SameBytes(small.out.get(), large.out.get() + n - 5'000, bytes));
  EXPECT_TRUE(testing::SameBytes(small.dgate.get(), large.dgate.get() + n - 5'000, bytes));
  EXPECT_TRUE(testing::SameBytes(small.dup.get(), large.dup.get() + n - 5'000, bytes));
}

TYPED_TEST(SwiGlu, WorksInPlace) {
  Problem<TypeParam> apart(1001);
  apart.Run(SerialFor);
  Problem<TypeParam> p(1001);
  SwiGluBackwardCpu(SwiGluBackwardArgs<TypeParam>{.count = 1001,
                                                  .gate = p.gate.get(),
                                                  .up = p.up.get(),
                                                  .dout = p.dout.get(),
                                                  .dgate = p.gate.get(),
                                                  .dup = p.up.get()},
                    SerialFor);
  EXPECT_TRUE(p.gate.SameBits(apart.dgate));
  EXPECT_TRUE(p.up.SameBits(apart.dup));
}

// exp shows itself in silu(-x) for large x, where silu(-x) = -x e^-x: the whole range, in fp32.
TEST(SwiGluExp, KeepsItsRelativeAccuracyOverTheWholeRange) {
  EachVariant([](SimdLevel level) {
    const float step = level == SimdLevel::kScalar ? 1e-3F : 1e-5F;
    std::vector<float> gate;
    for (float x = -110.0F; x < 20.0F; x += std::max(step, std::fabs(x) * 1e-6F)) {
      gate.push_back(x);
    }
    const auto n = static_cast<int64_t>(gate.size());
    std::vector<float> out(gate.size());
    const std::vector<float> up(gate.size(), 1.0F);
    SwiGluForwardCpu(
        SwiGluForwardArgs<float>{
            .count = n, .gate = gate.data(), .up = up.data(), .out = out.data()},
        SerialFor);
    double worst = 0;
    for (size_t i = 0; i < gate.size(); ++i) {
      const double x = gate[i];
      const double exact = x / (1 + std::exp(-x));
      const double error = std::fabs(out[i] - exact);
      // Where e^x is below the normal values it has few bits; x multiplies its rounding.
      const double subnormal = x < -87.0 ? std::fabs(x) * 0x1p-150 : 0;
      worst = std::max(worst, (error - subnormal) / testing::Ulp32(exact));
    }
    // exp 2 ulp; sum, reciprocal and two products half an ulp each; an ulp may double across a
    // binade.
    EXPECT_LT(worst, 5.0);
    RecordProperty("worst_ulp", std::to_string(worst));
  });
}

TEST(SwiGluSpecial, PassesNanAndInfinityAsTorchDoes) {
  EachVariant([](SimdLevel) {
    const float gate[] = {testing::kNan, testing::kInf, -testing::kInf, 200.0F,
                          -200.0F,       0.0F,          -0.0F};
    const float up[] = {1, 1, 1, 1, 1, testing::kInf, 1};
    float out[7];
    SwiGluForwardCpu(SwiGluForwardArgs<float>{.count = 7, .gate = gate, .up = up, .out = out},
                     SerialFor);
    EXPECT_TRUE(std::isnan(out[0]));
    EXPECT_EQ(out[1], testing::kInf);
    EXPECT_TRUE(std::isnan(out[2]));
    EXPECT_EQ(out[3], 200.0F);
    EXPECT_EQ(out[4], 0.0F);
    EXPECT_TRUE(std::isnan(out[5]));
    EXPECT_EQ(out[6], 0.0F);
  });
}

}  // namespace
}  // namespace dtrain::kernels
