#include "base/numeric/square_sum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/numeric/prng.h"

namespace dtrain::square_sum_test {
namespace {

constexpr int kStep = 8;

double SumOf(const std::vector<float>& x) {
  PairedSquareSum sum = {};
  size_t i = 0;
  for (; i + kStep <= x.size(); i += kStep) {
    sum.Add<kStep>(x.data() + i);
  }
  for (; i < x.size(); ++i) {
    sum.Add<1>(x.data() + i);
  }
  return sum.sum();
}

TEST(PairedSquareSum, KeepsWhatRoundingLeaves) {
  SplitMix64 random(7);
  for (const size_t count : {1U, 7U, 8U, 100U, 4096U}) {
    for (const double scale : {0.0, 1e-42, 1e-30, 1e-16, 1e-15, 1.0, 1e17, 1e18, 3e38}) {
      std::vector<float> x(count);
      long double exact = 0;
      for (size_t i = 0; i < count; ++i) {
        // Some are far smaller than their neighbours.
        x[i] = static_cast<float>(scale * random.Uniform() * (i % 5 == 0 ? 1e-20 : 1.0));
        exact += static_cast<long double>(x[i]) * static_cast<long double>(x[i]);
      }
      const auto expected = static_cast<double>(exact);
      EXPECT_NEAR(SumOf(x), expected, 1e-12 * expected) << count << " numbers up to " << scale;
    }
  }
}

TEST(PairedSquareSum, ShowsWhatIsNotFinite) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    for (const float others : {0.0F, 1e-30F, 1.0F, 1e30F}) {
      for (const size_t at : {size_t{0}, size_t{7}, size_t{8}}) {
        std::vector<float> x(9, others);
        x[at] = bad;
        EXPECT_FALSE(std::isfinite(SumOf(x))) << bad << " at " << at << " among " << others;
      }
    }
  }
}

}  // namespace
}  // namespace dtrain::square_sum_test
