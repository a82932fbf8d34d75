#include "kernels/layers/dropout.h"

#include <array>

#include "tests/kernels/kernel_testing.h"

namespace dtrain::kernels::dropout_test {
namespace {

using testing::Buffer;
using testing::EachVariant;

constexpr auto kSetWord = [](uint32_t x) { return x; };

// The known answers that the authors' Random123 library publishes for philox4x32-10.
TEST(Philox, GivesItsAuthorsKnownAnswers) {
  struct Known {
    std::array<uint32_t, 4> counter;
    uint64_t key;
    std::array<uint32_t, 4> answer;
  };
  const Known known[] = {{{0, 0, 0, 0}, 0, {0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U}},
                         {{0xffffffffU, 0xffffffffU, 0xffffffffU, 0xffffffffU},
                          0xffffffffffffffffU,
                          {0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU}},
                         {{0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U},
                          0x299f31d0a4093822U,
                          {0xd16cfe09U, 0x94fdccebU, 0x5001e420U, 0x24126ea1U}}};
  for (const Known& k : known) {
    const PhiloxWords<uint32_t> words =
        Philox(PhiloxWords<uint32_t>{{k.counter[0], k.counter[1], k.counter[2], k.counter[3]}},
               k.key, kSetWord);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(words.word[i], k.answer[i]);
    }
  }
}

// Element i's 16 bits, as philox.h says.
uint32_t BitsOf(const PhiloxStream& stream, int64_t i) {
  const auto lane = static_cast<uint32_t>(i % 32 / 2);
  const uint32_t word = PhiloxRun(stream, i / 128, lane, kSetWord).word[i / 32 % 4];
  return i % 2 == 0 ? word & 0xffffU : word >> 16;
}

template <class T>
class Dropout : public ::testing::Test {};
using Types = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(Dropout, Types);

TYPED_TEST(Dropout, KeepsWhatTheStreamSaysAtEverySizeAndAlignment) {
  const PhiloxStream stream{.seed = 0x123456789abcdefU, .offset = 0xfeedfacecafeU};
  EachVariant([&](SimdLevel) {
    for (const int64_t n : testing::OddSizes()) {
      for (const int64_t shift : {0, 3}) {
        Buffer<TypeParam> x(n, shift);
        Buffer<TypeParam> out(n, shift);
        x.Fill(1);
        DropoutCpu(
            DropoutArgs<TypeParam>{
                .count = n, .p = 0.3, .stream = stream, .x = x.get(), .out = out.get()},
            SerialFor);
        for (int64_t i = 0; i < n; ++i) {
          TypeParam expected;
          const bool kept = BitsOf(stream, i) >= 19661;  // 0.3 * 2^16, rounded.
          const auto scale = static_cast<float>(1 / (1 - 19661.0 / 65536));
          testing::Assign(expected, kept ? x(i) * scale : 0.0F);
          ASSERT_EQ(out(i), testing::ToF(expected)) << i << " of " << n;
        }
        ASSERT_TRUE(out.GuardIntact());
      }
    }
  });
}

TYPED_TEST(Dropout, GivesTheSameBitsInEveryVariantSplitAndPlace) {
  const int64_t n = (9 << 20) + 5;  // Written past the caches where it is aligned.
  const auto run = [&](const TypeParam* x, TypeParam* out, ParallelFor parallel_for) {
    DropoutCpu(
        DropoutArgs<TypeParam>{.count = n, .p = 0.1, .stream = {.seed = 7}, .x = x, .out = out},
        parallel_for);
  };
  Buffer<TypeParam> x(n);
  Buffer<TypeParam> oracle(n);
  x.Fill(2);
  SetVariantForTesting(SimdLevel::kScalar);
  run(x.get(), oracle.get(), SerialFor);
  EachVariant([&](SimdLevel) {
    Buffer<TypeParam> space(n + 64);
    const uint64_t past = reinterpret_cast<uint64_t>(space.get()) % 64 / sizeof(TypeParam);
    TypeParam* const aligned = space.get() + (64 / sizeof(TypeParam) - past);
    run(x.get(), aligned, testing::Split{3, 1});
    ASSERT_TRUE(
        testing::SameBytes(aligned, oracle.get(), static_cast<size_t>(n) * sizeof(TypeParam)));
    Buffer<TypeParam> in_place = x;
    run(in_place.get(), in_place.get(), SerialFor);
    ASSERT_TRUE(in_place.SameBits(oracle));
  });
}

TEST(DropoutRate, IsWhatWasAskedFor) {
  const int64_t n = 1 << 20;
  Buffer<float> x(n);
  std::fill_n(x.get(), n, 1.0F);
  Buffer<float> out(n);
  for (const double p : {0.0, 1e-3, 0.1, 0.5, 0.9}) {
    DropoutCpu({.count = n, .p = p, .stream = {.seed = 5}, .x = x.get(), .out = out.get()},
               SerialFor);
    const auto dropped = static_cast<double>(std::count(out.get(), out.get() + n, 0.0F));
    const double sigma = std::sqrt(n * p * (1 - p));  // Binomial; the seed is fixed.
    EXPECT_NEAR(dropped, n * p, 4 * sigma) << p;
  }
  x[3] = testing::kNan;
  DropoutCpu({.count = n, .p = 1, .stream = {.seed = 5}, .x = x.get(), .out = out.get()},
             SerialFor);
  EXPECT_EQ(std::count(out.get(), out.get() + n, 0.0F), n);
}

TEST(DropoutRate, StreamsOfOtherSeedsAndOffsetsAreOthers) {
  const auto kept = [](PhiloxStream stream) {
    std::vector<bool> bits;
    for (int64_t i = 0; i < 4096; ++i) {
      bits.push_back(BitsOf(stream, i) >= 0x8000U);
    }
    return bits;
  };
  const auto differing = [&](PhiloxStream a, PhiloxStream b) {
    const std::vector<bool> x = kept(a);
    const std::vector<bool> y = kept(b);
    int count = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      count += x[i] != y[i] ? 1 : 0;
    }
    return count;
  };
  for (const PhiloxStream& other : {PhiloxStream{1, 0}, PhiloxStream{0, 1},
                                    PhiloxStream{1ULL << 32, 0}, PhiloxStream{0, 1ULL << 32}}) {
    EXPECT_NEAR(differing({0, 0}, other), 2048, 4 * 32);  // Half; sigma is 32.
  }
}

}  // namespace
}  // namespace dtrain::kernels::dropout_test
