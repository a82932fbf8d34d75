#include "kernels/optimizer/adamw_rounded.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <iterator>
#include <limits>
#include <utility>

#include "kernels/flat.h"
#include "tests/kernels/kernel_testing.h"

namespace dtrain::kernels::adamw_rounded_test {
namespace {

using testing::Buffer;
using testing::EachVariant;

constexpr int64_t kFirst = (int64_t{1} << 33) + 5;  // Places go beyond 32 bits.

AdamWOptions Options() {
  return {.lr = 3e-3, .beta2 = 0.95, .weight_decay = 0.1, .grad_scale = 0.37, .step = 11};
}

// The word of the weight with these bits at this place of the layout.
uint32_t WeightWord(uint32_t bits, int64_t place) {
  const uint32_t mixed = bits + static_cast<uint32_t>(place) * kWeightPlaceFactor;
  const uint64_t product = uint64_t{mixed} * kWeightFactor;
  return static_cast<uint32_t>(product >> 32) ^ static_cast<uint32_t>(product);
}

struct Problem {
  explicit Problem(int64_t n, int64_t shift = 0)
      : p(n, shift), g(n, shift), m(n, shift), v(n, shift), out(n, shift), kept(n, shift) {
    p.Fill(1, 2.0F);
    g.Fill(2, 3.0F);
    m.Fill(3, 0.1F);
    v.Fill(4, 0.01F, 0.0101F);
  }
  WeightSums Update(bool keeps, bool copies, bool past_caches = false) {
    return AdamWRoundedCpu({.n = p.size(),
                            .first = kFirst,
                            .p = p.get(),
                            .g = g.get(),
                            .m = m.get(),
                            .v = v.get(),
                            .p_bf16 = copies ? out.get() : nullptr,
                            .kept = {keeps ? kept.get() : nullptr, past_caches}},
                           Options());
  }
  // The two passes whose bits it has.
  void RoundThenUpdate() {
    Buffer<float> rounded(p.size());
    RoundToBf16Cpu(p.size(), g.get(), rounded.get(), kept.get(), SerialFor);
    AdamWCpu(p.size(), p.get(), rounded.get(), m.get(), v.get(), out.get(), Options(), SerialFor);
  }
  uint32_t Sum() const {
    uint32_t sum = 0;
    for (int64_t i = 0; i < p.size(); ++i) {
      sum += WeightWord(std::bit_cast<uint32_t>(p(i)), kFirst + i);
    }
    return sum;
  }
  bool HasStateOf(const Problem& other) const {
    return p.SameBits(other.p) && m.SameBits(other.m) && v.SameBits(other.v);
  }
  bool GuardsIntact() const {
    return p.GuardIntact() && m.GuardIntact() && v.GuardIntact() && out.GuardIntact() &&
           kept.GuardIntact();
  }
  Buffer<float> p, g, m, v;
  Buffer<BFloat16> out, kept;
};

TEST(AdamWRounded, HasTheBitsOfRoundingAndThenUpdating) {
  for (const int64_t n : testing::OddSizes()) {
    SetVariantForTesting(SimdLevel::kScalar);
    Problem oracle(n);
    oracle.RoundThenUpdate();
    EachVariant([&](SimdLevel) {
      for (const int64_t shift : {0, 1, 3}) {
        for (const bool past_caches : {false, true}) {
          Problem ours(n, shift);
          ours.Update(true, true, past_caches);
          ASSERT_TRUE(ours.HasStateOf(oracle)) << n;
          ASSERT_TRUE(ours.kept.SameBits(oracle.kept)) << n;
          ASSERT_TRUE(ours.out.SameBits(oracle.out)) << n;
          ASSERT_TRUE(ours.GuardsIntact()) << n;
        }
      }
    });
  }
}

TEST(AdamWRounded, WritesOnlyWhatIsWanted) {
  EachVariant([](SimdLevel) {
    Problem oracle(1000);
    oracle.RoundThenUpdate();
    for (const bool keeps : {false, true}) {
      for (const bool copies : {false, true}) {
        Problem ours(1000);
        const WeightSums sums = ours.Update(keeps, copies);
        EXPECT_TRUE(ours.HasStateOf(oracle));
        EXPECT_TRUE(ours.kept.SameBits(keeps ? oracle.kept : Problem(1000).kept));
        EXPECT_TRUE(ours.out.SameBits(copies ? oracle.out : Problem(1000).out));
        EXPECT_EQ(sums == WeightSums(), !keeps);
      }
    }
  });
}

TEST(AdamWRounded, RoundsToEvenAndKeepsWhatIsNoNumber) {
  const float infinity = std::numeric_limits<float>::infinity();
  const uint32_t special[] = {0x3f808000U,  // Halfway, to even: down, then up.
                              0x3f818000U,
                              0x3f808001U,
                              0x00000001U,
                              0x00008000U,
                              0x80000000U,
                              0x7f7fffffU,  // The largest becomes infinite.
                              std::bit_cast<uint32_t>(-infinity),
                              0x7fc12345U,
                              0xff800001U};  // Signals.
  EachVariant([&](SimdLevel) {
    Problem ours(40);
    for (int64_t i = 0; i < 40; ++i) {
      ours.g[i] = std::bit_cast<float>(special[static_cast<size_t>(i) % std::size(special)]);
    }
    Problem expected = ours;
    ours.Update(true, false);
    for (int64_t i = 0; i < 40; ++i) {
      ASSERT_EQ(ours.kept[i].bits, ToBFloat16(expected.g[i]).bits) << i;
    }
  });
}

TEST(AdamWRounded, SumsWeightsAsTheyComeAndAsTheyAreLeft) {
  EachVariant([](SimdLevel) {
    for (const int64_t n : testing::OddSizes()) {
      for (const int64_t shift : {0, 1, 3}) {
        Problem ours(n, shift);
        const uint32_t before = ours.Sum();
        const WeightSums sums = ours.Update(true, false, /*past_caches=*/true);
        ASSERT_EQ(sums.before, before) << n;
        ASSERT_EQ(sums.after, ours.Sum()) << n;
      }
    }
  });
}

TEST(AdamWRounded, SumsShowEachChange) {
  const int64_t n = 5000;
  const Problem untouched(n);
  const auto sum_with = [&](auto change) {
    Problem changed = untouched;
    change(changed);
    return changed.Update(true, false).before;
  };
  const uint32_t sum = sum_with([](Problem&) {});
  for (const int64_t i : {0, 15, 16, 4999}) {
    for (int bit = 0; bit < 32; ++bit) {
      EXPECT_NE(sum, sum_with([&](Problem& problem) {
                  const auto bits = std::bit_cast<uint32_t>(problem.p[i]) ^ (1U << bit);
                  problem.p[i] = std::bit_cast<float>(bits);
                }))
          << "bit " << bit << " of weight " << i;
    }
  }
  // Changes that are alike, and weights that change places.
  EXPECT_NE(sum, sum_with([](Problem& problem) {
              for (int64_t i = 0; i < n; ++i) {
                problem.p[i] = -problem.p[i];
              }
            }));
  EXPECT_NE(sum, sum_with([](Problem& problem) {
              problem.p[7] = -problem.p[7];
              problem.p[8] = -problem.p[8];
            }));
  EXPECT_NE(sum, sum_with([](Problem& problem) { std::swap(problem.p[3], problem.p[19]); }));
}

}  // namespace
}  // namespace dtrain::kernels::adamw_rounded_test
