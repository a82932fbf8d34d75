#include "kernels/layers/activation.h"

#include "kernels/layers/activation_math.h"
#include "tests/kernels/kernel_testing.h"

namespace dtrain::kernels::activation_test {
namespace {

using testing::Buffer;
using testing::EachVariant;

constexpr Activation kAll[] = {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh};

// act(x) and act'(x) in fp64, with the magnitudes of the terms that the slope is a sum of.
struct Exact {
  double value, slope, slope_magnitude;
};
Exact ExactOf(Activation activation, double x) {
  if (activation == Activation::kGelu) {
    const double distribution = 0.5 * std::erfc(-x / std::sqrt(2.0));
    const double density = std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
    return {x * distribution, distribution + x * density, distribution + std::fabs(x * density)};
  }
  double inner = x;  // act(x) = x / (1 + e^-inner).
  double inner_slope = 1;
  if (activation == Activation::kGeluTanh) {
    const double c = 2 * std::sqrt(2 / M_PI);
    inner = c * (x + 0.044715 * x * x * x);
    inner_slope = c * (1 + 3 * 0.044715 * x * x);
  }
  const double s = 1 / (1 + std::exp(-inner));
  const double complement = 1 / (1 + std::exp(inner));
  const double bend = x * complement * inner_slope;
  return {x * s, s * (1 + bend), s * (1 + std::fabs(bend))};
}

// Relative errors. silu: a sigmoid within 4 ulp (exp 2; sum, quotient and product half each) and a
// product. gelu: exp 2, a quotient of polynomials with positive terms and products. gelu with tanh:
// as silu, but what rounding takes from 2u, at most two ulp of it, is a relative error of e^-2u. On
// bf16 also the short forms': 4e-6, and a rounding of the exponent.
template <class T>
double ValueError(Activation activation, double x) {
  const double ulp = 0x1p-23;
  double inner = std::fabs(x);  // The magnitude of the exponential's argument.
  double error = 6 * ulp;
  if (activation == Activation::kGeluTanh) {
    inner = 1.6 * (std::fabs(x) + 0.044715 * std::fabs(x * x * x));
    error += 2 * ulp * std::min(inner, 104.0);
  } else if (activation == Activation::kGelu) {
    inner = x * x / 2;
    error = 12 * ulp;
  }
  return error + (sizeof(T) == 4 ? 0 : 4e-6 + ulp * std::min(inner, 104.0));
}

// Below the normal values a result has few bits.
constexpr double kSubnormal = 0x1p-140;

template <class T>
struct Problem {
  explicit Problem(int64_t n, int64_t shift = 0, int64_t columns = 0)
      : count(n),
        hidden(columns == 0 ? n : columns),
        stride(columns == 0 ? n : 2 * columns),
        both(columns == 0 ? 0 : 2 * n, shift),
        dboth(columns == 0 ? 0 : 2 * n, shift),
        gate(n, shift),
        up(n, shift),
        out(n, shift),
        dout(n, shift),
        dgate(n, shift),
        dup(n, shift),
        y(n, shift),
        dx(n, shift) {
    gate.Fill(1, 12.0F);
    up.Fill(2, 2.0F);
    dout.Fill(3);
    for (int64_t i = 0; i < (columns == 0 ? 0 : n); ++i) {
      both[GatedOffset(i, hidden, stride)] = gate[i];
      both[GatedOffset(i, hidden, stride) + hidden] = up[i];
    }
  }
  GatedForwardArgs<T> Forward(Activation activation) {
    return {.activation = activation,
            .rows = hidden == 0 ? 0 : count / hidden,
            .hidden = hidden,
            .stride = stride,
            .gate = both.size() > 0 ? both.get() : gate.get(),
            .up = both.size() > 0 ? both.get() + hidden : up.get(),
            .out = out.get()};
  }
  GatedBackwardArgs<T> Backward(Activation activation) {
    return {.activation = activation,
            .rows = hidden == 0 ? 0 : count / hidden,
            .hidden = hidden,
            .stride = stride,
            .gate = both.size() > 0 ? both.get() : gate.get(),
            .up = both.size() > 0 ? both.get() + hidden : up.get(),
            .dout = dout.get(),
            .dgate = both.size() > 0 ? dboth.get() : dgate.get(),
            .dup = both.size() > 0 ? dboth.get() + hidden : dup.get()};
  }
  void Run(Activation activation, ParallelFor parallel_for) {
    GatedForwardCpu(Forward(activation), parallel_for);
    GatedBackwardCpu(Backward(activation), parallel_for);
    ActivationForwardCpu(ActivationForwardArgs<T>{activation, count, gate.get(), y.get()},
                         parallel_for);
    ActivationBackwardCpu(
        ActivationBackwardArgs<T>{activation, count, gate.get(), dout.get(), dx.get()},
        parallel_for);
    for (int64_t i = 0; i < (both.size() > 0 ? count : 0); ++i) {
      dgate[i] = dboth[GatedOffset(i, hidden, stride)];
      dup[i] = dboth[GatedOffset(i, hidden, stride) + hidden];
    }
  }
  bool SameBits(const Problem& other) const {
    return out.SameBits(other.out) && dgate.SameBits(other.dgate) && dup.SameBits(other.dup) &&
           y.SameBits(other.y) && dx.SameBits(other.dx);
  }
  bool GuardsIntact() const {
    return out.GuardIntact() && dgate.GuardIntact() && dup.GuardIntact() && dboth.GuardIntact() &&
           y.GuardIntact() && dx.GuardIntact();
  }
  int64_t count, hidden, stride;
  Buffer<T> both, dboth;  // Rows of gate and up, where a problem has columns.
  Buffer<T> gate, up, out, dout, dgate, dup, y, dx;
};

template <class T>
void ExpectNear(float got, double expected, double error, float x) {
  ASSERT_NEAR(got, expected, testing::HalfUlp<T>(expected) * 1.001 + error + kSubnormal) << x;
}

template <class T>
void ExpectFormula(const Problem<T>& p, Activation activation) {
  for (int64_t i = 0; i < p.count; ++i) {
    const float x = p.gate(i);
    const double dout = p.dout(i);
    const Exact exact = ExactOf(activation, x);
    const double error = ValueError<T>(activation, x);
    const double slope_error = 3 * error * exact.slope_magnitude;
    const double value = std::fabs(exact.value);
    ExpectNear<T>(p.y(i), exact.value, error * value, x);
    ExpectNear<T>(p.dx(i), dout * exact.slope, slope_error * std::fabs(dout), x);
    ExpectNear<T>(p.out(i), exact.value * p.up(i), error * value * std::fabs(p.up(i)), x);
    ExpectNear<T>(p.dup(i), dout * exact.value, error * value * std::fabs(dout), x);
    ExpectNear<T>(p.dgate(i), dout * p.up(i) * exact.slope, slope_error * std::fabs(dout * p.up(i)),
                  x);
  }
}

template <class T>
class Activations : public ::testing::Test {};
using Types = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(Activations, Types);

TYPED_TEST(Activations, FollowTheirFormulasAtEverySizeAndAlignment) {
  EachVariant([](SimdLevel) {
    for (const Activation activation : kAll) {
      for (const int64_t n : testing::OddSizes()) {
        for (const int64_t shift : {0, 3}) {
          Problem<TypeParam> p(n, shift);
          p.Run(activation, SerialFor);
          ExpectFormula(p, activation);
          ASSERT_TRUE(p.GuardsIntact()) << n;
          if (::testing::Test::HasFatalFailure()) {
            FAIL() << "activation " << static_cast<int>(activation) << ", " << n << " elements";
          }
        }
      }
    }
  });
}

TYPED_TEST(Activations, GatesInOneBufferGiveTheBitsOfGatesApart) {
  EachVariant([](SimdLevel) {
    for (const Activation activation : kAll) {
      for (const int64_t hidden : {1, 7, 16, 40, 1000}) {
        for (const int64_t shift : {0, 1}) {
          const int64_t n = 33 * hidden;
          Problem<TypeParam> apart(n, shift);
          apart.Run(activation, SerialFor);
          Problem<TypeParam> fused(n, shift, hidden);
          fused.Run(activation, testing::Splits()[3]);
          ASSERT_TRUE(fused.SameBits(apart)) << hidden << " columns";
          ASSERT_TRUE(fused.GuardsIntact());
        }
      }
    }
  });
}

TYPED_TEST(Activations, GiveTheSameBitsInEveryVariantAndSplit) {
  for (const Activation activation : kAll) {
    SetVariantForTesting(SimdLevel::kScalar);
    Problem<TypeParam> oracle(70'001);
    oracle.Run(activation, SerialFor);
    EachVariant([&](SimdLevel) {
      for (const testing::Split& split : testing::Splits()) {
        Problem<TypeParam> other(70'001, 5);
        other.Run(activation, split);
        ASSERT_TRUE(other.SameBits(oracle)) << split.threads << " threads";
      }
    });
  }
}

TYPED_TEST(Activations, WritePastTheCachesTheSameBits) {
  for (const int64_t hidden : {int64_t{0}, int64_t{1040}}) {
    const int64_t n = hidden == 0 ? (9 << 20) + 5 : 9'000 * hidden;
    const int64_t tail = hidden == 0 ? 5'000 : 5 * hidden;
    Problem<TypeParam> large(n, 1, hidden);
    large.Run(Activation::kSilu, SerialFor);
    Problem<TypeParam> small(tail);
    std::copy_n(large.gate.get() + n - tail, tail, small.gate.get());
    std::copy_n(large.up.get() + n - tail, tail, small.up.get());
    std::copy_n(large.dout.get() + n - tail, tail, small.dout.get());
    small.Run(Activation::kSilu, SerialFor);
    const auto same = [&](const Buffer<TypeParam>& a, const Buffer<TypeParam>& b) {
      return testing::SameBytes(a.get(), b.get() + n - tail,
                                static_cast<size_t>(tail) * sizeof(TypeParam));
    };
    EXPECT_TRUE(same(small.out, large.out));
    EXPECT_TRUE(same(small.dgate, large.dgate));
    EXPECT_TRUE(same(small.dup, large.dup));
    EXPECT_TRUE(same(small.y, large.y));
    EXPECT_TRUE(same(small.dx, large.dx));
  }
}

TYPED_TEST(Activations, WorkInPlace) {
  for (const Activation activation : kAll) {
    Problem<TypeParam> apart(1001);
    apart.Run(activation, SerialFor);
    Problem<TypeParam> p(1001);
    GatedBackwardArgs<TypeParam> args = p.Backward(activation);
    args.dgate = p.gate.get();
    args.dup = p.up.get();
    GatedBackwardCpu(args, SerialFor);
    EXPECT_TRUE(p.gate.SameBits(apart.dgate));
    EXPECT_TRUE(p.up.SameBits(apart.dup));
    Problem<TypeParam> alone(1001);
    ActivationBackwardCpu(ActivationBackwardArgs<TypeParam>{activation, 1001, alone.gate.get(),
                                                            alone.dout.get(), alone.dout.get()},
                          SerialFor);
    EXPECT_TRUE(alone.dout.SameBits(apart.dx));
    ActivationForwardCpu(
        ActivationForwardArgs<TypeParam>{activation, 1001, alone.gate.get(), alone.gate.get()},
        SerialFor);
    EXPECT_TRUE(alone.gate.SameBits(apart.y));
  }
}

// exp shows itself in act(-x) for large x: the whole range, in fp32.
TEST(ActivationAccuracy, HoldsRelativeToTheValueOverTheWholeRange) {
  EachVariant([](SimdLevel level) {
    const float step = level == SimdLevel::kScalar ? 1e-3F : 2e-5F;
    std::vector<float> x;
    for (float at = -110.0F; at < 20.0F; at += std::max(step, std::fabs(at) * 1e-6F)) {
      x.push_back(at);
    }
    std::vector<float> y(x.size());
    for (const Activation activation : kAll) {
      ActivationForwardCpu(ActivationForwardArgs<float>{activation, static_cast<int64_t>(x.size()),
                                                        x.data(), y.data()},
                           SerialFor);
      double worst = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const double exact = ExactOf(activation, x[i]).value;
        const double allowed = std::fabs(exact) * ValueError<float>(activation, x[i]) +
                               0.5 * testing::Ulp32(exact) +
                               // Where e^x is subnormal it has few bits; x multiplies its rounding.
                               std::fabs(x[i]) * 0x1p-149;
        worst = std::max(worst, std::fabs(y[i] - exact) / allowed);
      }
      EXPECT_LE(worst, 1.0) << "activation " << static_cast<int>(activation);
      RecordProperty("worst_of_allowed_" + std::to_string(static_cast<int>(activation)),
                     std::to_string(worst));
    }
  });
}

// Every bf16 that is a number.
TEST(ActivationAccuracy, IsThatOfBf16AtEveryBf16) {
  std::vector<BFloat16> x;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const BFloat16 at{static_cast<uint16_t>(bits)};
    if (std::isfinite(ToFloat(at))) {
      x.push_back(at);
    }
  }
  std::vector<BFloat16> y(x.size());
  for (const Activation activation : kAll) {
    ActivationForwardCpu(ActivationForwardArgs<BFloat16>{activation, static_cast<int64_t>(x.size()),
                                                         x.data(), y.data()},
                         SerialFor);
    double worst = 0;  // Counted in halves of a unit in the last place.
    int64_t rounded_other = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double at = ToFloat(x[i]);
      const double exact = ExactOf(activation, at).value;
      const double half = testing::HalfUlp<BFloat16>(exact) + kSubnormal;
      const double error = std::fabs(ToFloat(y[i]) - exact) / half;
      worst = std::max(worst, error);
      rounded_other += error > 1.0001 ? 1 : 0;
    }
    EXPECT_LE(worst, 1.02) << "activation " << static_cast<int>(activation);
    EXPECT_LE(rounded_other, static_cast<int64_t>(x.size()) / 500);
    RecordProperty("worst_of_half_ulp_" + std::to_string(static_cast<int>(activation)),
                   std::to_string(worst));
    RecordProperty("rounded_other_" + std::to_string(static_cast<int>(activation)),
                   std::to_string(rounded_other));
  }
}

TEST(ActivationSpecial, PassesNanAndInfinityAsTorchDoes) {
  EachVariant([](SimdLevel) {
    const float gate[] = {testing::kNan, testing::kInf, -testing::kInf, 200.0F, -200.0F,
                          0.0F,          -0.0F,         1e30F,          -1e30F};
    const float up[] = {1, 1, 1, 1, 1, testing::kInf, 1, 1, 1};
    for (const Activation activation : kAll) {
      float out[9];
      GatedForwardCpu(GatedForwardArgs<float>{activation, 1, 9, 9, gate, up, out}, SerialFor);
      EXPECT_TRUE(std::isnan(out[0]));
      EXPECT_EQ(out[1], testing::kInf);
      EXPECT_TRUE(std::isnan(out[2]));
      EXPECT_EQ(out[3], 200.0F);
      EXPECT_EQ(out[4], 0.0F);
      EXPECT_TRUE(std::isnan(out[5]));
      EXPECT_EQ(out[6], 0.0F);
      EXPECT_EQ(out[7], 1e30F);
      EXPECT_EQ(out[8], 0.0F);
      const float ones[] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
      float dx[9];
      ActivationBackwardCpu(ActivationBackwardArgs<float>{activation, 9, gate, ones, dx},
                            SerialFor);
      EXPECT_TRUE(std::isnan(dx[0]));
      EXPECT_EQ(dx[3], 1.0F);
      EXPECT_EQ(dx[4], 0.0F);
      EXPECT_NEAR(dx[5], 0.5F, 0x1p-23F);  // gelu is a polynomial there: an ulp either way.
      EXPECT_EQ(dx[7], 1.0F);
      EXPECT_EQ(dx[8], 0.0F);
    }
  });
}

TEST(GatedOffset, IsWhereTheRowsOfAFusedBufferAre) {
  for (const int64_t hidden : {1, 3, 8, 100}) {
    for (const int64_t stride : {hidden, hidden + 1, 2 * hidden}) {
      for (int64_t row = 0; row < 5; ++row) {
        for (int64_t column = 0; column < hidden; ++column) {
          ASSERT_EQ(GatedOffset(row * hidden + column, hidden, stride), row * stride + column);
        }
      }
    }
  }
}

}  // namespace
}  // namespace dtrain::kernels::activation_test
