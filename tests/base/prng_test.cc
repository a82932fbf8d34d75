// Numbers that must never change: data order and hashes of old runs depend on them.
#include "base/numeric/prng.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace dtrain::prng_test {
namespace {

TEST(SplitMix64, GivesTheReferenceSequence) {
  SplitMix64 random(1234567);  // The published test vector of the reference implementation.
  EXPECT_EQ(random.Next(), 6457827717110365317ULL);
  EXPECT_EQ(random.Next(), 3203168211198807973ULL);
  EXPECT_EQ(random.Next(), 9817491932198370423ULL);
}

TEST(SplitMix64, StaysBelowItsBoundAndReachesAllOfIt) {
  SplitMix64 random(3);
  std::vector<int> seen(7, 0);
  for (int i = 0; i < 7000; ++i) {
    const uint64_t value = random.Below(7);
    ASSERT_LT(value, 7U);
    ++seen[value];
  }
  for (const int count : seen) {
    EXPECT_NEAR(count, 1000, 150);  // Five standard deviations.
  }
  for (int i = 0; i < 1000; ++i) {
    const double value = random.Uniform();
    EXPECT_GE(value, 0);
    EXPECT_LT(value, 1);
  }
}

TEST(IndexPermutation, VisitsEveryIndexOnce) {
  for (const uint64_t count : {1ULL, 2ULL, 3ULL, 5ULL, 64ULL, 65ULL, 1000ULL, 4097ULL}) {
    const IndexPermutation permutation(count, 42);
    std::vector<bool> seen(count, false);
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t image = permutation(i);
      ASSERT_LT(image, count);
      ASSERT_FALSE(seen[image]) << image << " twice among " << count;
      seen[image] = true;
    }
  }
}

TEST(IndexPermutation, DependsOnTheSeedAndLeavesFewIndicesInPlace) {
  constexpr uint64_t kCount = 10'000;
  const IndexPermutation first(kCount, 1);
  const IndexPermutation second(kCount, 2);
  int fixed = 0;
  int equal = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    fixed += first(i) == i ? 1 : 0;
    equal += first(i) == second(i) ? 1 : 0;
  }
  EXPECT_LT(fixed, 10);  // A random permutation has one on average.
  EXPECT_LT(equal, 10);
}

TEST(IndexPermutation, ServesCountsBeyond32Bits) {
  constexpr uint64_t kCount = 5'000'000'000ULL;
  const IndexPermutation permutation(kCount, 9);
  for (const uint64_t index : {uint64_t{0}, uint64_t{1}, kCount / 2, kCount - 1}) {
    EXPECT_LT(permutation(index), kCount);
  }
}

}  // namespace
}  // namespace dtrain::prng_test
