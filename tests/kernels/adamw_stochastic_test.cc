#include "kernels/optimizer/adamw_stochastic.h"

#include "kernels/optimizer/stochastic_math.h"
#include "tests/kernels/kernel_testing.h"

namespace dtrain::kernels::adamw_stochastic_test {
namespace {

using testing::Buffer;
using testing::EachVariant;

constexpr auto kSetWord = [](uint32_t x) { return x; };

struct Problem {
  explicit Problem(int64_t count, int64_t place = 0, int64_t shift = 0)
      : n(count), first(place), p(n, shift), g(n, shift), m(n, shift), v(n, shift), out(n, shift) {}

  // The elements [place, place + count) of `whole`.
  Problem(const Problem& whole, int64_t place, int64_t count) : Problem(count, place, place % 5) {
    std::copy_n(whole.p.get() + place, n, p.get());
    std::copy_n(whole.g.get() + place, n, g.get());
    std::copy_n(whole.m.get() + place, n, m.get());
    std::copy_n(whole.v.get() + place, n, v.get());
  }
  Problem& Fill() {
    p.Fill(1);
    g.Fill(2);
    m.Fill(3, 0.1F);
    v.Fill(4, 0.01F, 0.0101F);
    return *this;
  }
  void Run(ParallelFor parallel_for, const AdamWOptions& options, bool copy = true) {
    AdamWStochasticCpu(n, first, p.get(), g.get(), m.get(), v.get(), copy ? out.get() : nullptr,
                       options, {.seed = 9, .offset = static_cast<uint64_t>(options.step)},
                       parallel_for);
  }
  bool SameBits(const Problem& whole, int64_t place) const {
    const auto bytes = [&](size_t each) { return static_cast<size_t>(n) * each; };
    return testing::SameBytes(p.get(), whole.p.get() + place, bytes(4)) &&
           testing::SameBytes(m.get(), whole.m.get() + place, bytes(2)) &&
           testing::SameBytes(v.get(), whole.v.get() + place, bytes(2)) &&
           testing::SameBytes(out.get(), whole.out.get() + place, bytes(2));
  }
  int64_t n, first;
  Buffer<float> p, g;
  Buffer<BFloat16> m, v, out;
};

const AdamWOptions kOptions = {
    .lr = 3e-3, .beta2 = 0.95, .weight_decay = 0.1, .grad_scale = 0.4, .step = 7};

TEST(AdamWStochastic, MomentsAreOneOfTheTwoNeighboursAndWeightsAsUsual) {
  EachVariant([](SimdLevel) {
    for (const int64_t n : testing::OddSizes()) {
      Problem ours(n, 77, 1);
      ours.Fill();
      Problem nearest(n);
      nearest.Fill();
      ours.Run(SerialFor, kOptions);
      AdamWCpuBf16State(n, nearest.p.get(), nearest.g.get(), nearest.m.get(), nearest.v.get(),
                        nearest.out.get(), kOptions, SerialFor);
      ASSERT_TRUE(ours.p.SameBits(nearest.p) && ours.out.SameBits(nearest.out)) << n;
      for (int64_t i = 0; i < n; ++i) {
        // The other neighbour is one place of bf16 away.
        ASSERT_LE(std::abs(int{ours.m[i].bits} - int{nearest.m[i].bits}), 1);
        ASSERT_LE(std::abs(int{ours.v[i].bits} - int{nearest.v[i].bits}), 1);
      }
      ASSERT_TRUE(ours.m.GuardIntact() && ours.v.GuardIntact() && ours.out.GuardIntact());
    }
  });
}

TEST(AdamWStochastic, GivesTheSameBitsHoweverTheLayoutIsSharded) {
  SetVariantForTesting(SimdLevel::kScalar);
  Problem before(50'001);
  before.Fill();
  Problem whole = before;
  whole.Run(SerialFor, kOptions);
  EachVariant([&](SimdLevel) {
    for (const testing::Split& split : testing::Splits()) {
      Problem again = before;
      again.Run(split, kOptions);
      ASSERT_TRUE(again.SameBits(whole, 0)) << split.threads << " threads";
    }
    int64_t begin = 0;
    for (const int64_t count : {1, 63, 64, 7, 100, 4096, 16'384, 20'000, 9'286}) {
      Problem shard(before, begin, count);
      shard.Run(SerialFor, kOptions);
      ASSERT_TRUE(shard.SameBits(whole, begin)) << "shard at " << begin;
      begin += count;
    }
    ASSERT_EQ(begin, whole.n);
  });
}

TEST(AdamWStochastic, AnotherStepRoundsOtherwise) {
  Problem a(4096);
  a.Fill();
  Problem b = a;
  AdamWOptions next = kOptions;
  a.Run(SerialFor, next, false);
  ++next.step;
  b.Run(SerialFor, next, false);
  EXPECT_FALSE(a.m.SameBits(b.m));
  EXPECT_FALSE(a.v.SameBits(b.v));
}

// With gradients of 1, v goes to 1 - beta2^t. With rounding to nearest it stops growing long
// before.
TEST(AdamWStochastic, ASecondMomentThatGrowsSlowlyGetsThereOnAverage) {
  constexpr int64_t kCount = 4096;
  constexpr int kSteps = 1000;
  AdamWOptions options{.lr = 0, .beta2 = 0.999};
  Problem ours(kCount);
  Problem nearest(kCount);
  for (Problem* problem : {&ours, &nearest}) {
    std::fill_n(problem->g.get(), kCount, 1.0F);
    std::fill_n(problem->m.get(), kCount, BFloat16{0});
    std::fill_n(problem->v.get(), kCount, BFloat16{0});
  }
  for (options.step = 1; options.step <= kSteps; ++options.step) {
    ours.Run(SerialFor, options, false);
    AdamWCpuBf16State(kCount, nearest.p.get(), nearest.g.get(), nearest.m.get(), nearest.v.get(),
                      nullptr, options, SerialFor);
  }
  const auto mean = [](const Buffer<BFloat16>& x) {
    double sum = 0;
    for (int64_t i = 0; i < kCount; ++i) {
      sum += x(i);
    }
    return sum / kCount;
  };
  const double exact = 1 - std::pow(0.999, kSteps);
  // A step's rounding has a standard deviation of at most 2^-9 of 0.63 / 2, over 1000 steps and
  // 4096 elements: 3e-4; five of them.
  EXPECT_NEAR(mean(ours.v), exact, 1.6e-3);
  EXPECT_LT(mean(nearest.v), exact * 0.75);
  EXPECT_NEAR(mean(ours.m), 1, 1e-2);
}

TEST(AdamWStochastic, RoundsUpAsOftenAsTheBitsCutOffSay) {
  const float x = std::bit_cast<float>(0x3f804000U);  // A quarter of the way to the next bf16.
  int up = 0;
  for (uint32_t random = 0; random < 65536; ++random) {
    const float rounded = RoundStochastic(x, random, kSetWord);
    const uint32_t bits = std::bit_cast<uint32_t>(rounded);
    ASSERT_TRUE(bits == 0x3f800000U || bits == 0x3f810000U);
    up += bits == 0x3f810000U ? 1 : 0;
  }
  EXPECT_EQ(up, 16384);
  for (const float kept : {0.0F, 1.0F, -2.0F, testing::kInf, -testing::kInf}) {
    EXPECT_EQ(RoundStochastic(kept, 0xffffU, kSetWord), kept);
  }
  EXPECT_TRUE(std::isnan(RoundStochastic(testing::kNan, 0xffffU, kSetWord)));
}

}  // namespace
}  // namespace dtrain::kernels::adamw_stochastic_test
