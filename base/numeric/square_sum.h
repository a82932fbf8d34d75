// Sums of squares of fp32 numbers with a relative error of 1e-12, for most numbers without fp64,
// for which some GPUs have one unit for 64 of fp32. Each square and each sum is kept with its
// rounding error (Dekker 1971, doi 10.1007/BF01397083; the sum is Knuth's TwoSum). Pure.
#pragma once

#include <cmath>

#include "base/numeric/host_device.h"

namespace dtrain {

// A sum, initialised with {}. For up to 4,096 numbers, because otherwise `high` could overflow.
struct PairedSquareSum {
  float high;
  float low;   // The rounding errors of `high`.
  double far;  // The sum of the squares that fp32 cannot hold.

  // Adds the squares of x [kCount].
  template <int kCount>
  DT_HOST_DEVICE void Add(const float* x) {
    float largest = 0;
    for (int i = 0; i < kCount; ++i) {
      largest = fmaxf(largest, fabsf(x[i]));
    }
    // Numbers that are much smaller than the largest do not change the sum. fmaxf ignores NaN, and
    // the sum below keeps it.
    if (largest != 0 && !(largest > 0x1p-50F && largest < 0x1p57F)) {
      for (int i = 0; i < kCount; ++i) {
        far += static_cast<double>(x[i]) * static_cast<double>(x[i]);
      }
      return;
    }
    for (int i = 0; i < kCount; ++i) {
      // fmaf keeps the compiler from fusing the product with the sum below.
      const float square = fmaf(x[i], x[i], -0.0F);
      Add(square, fmaf(x[i], x[i], -square));
    }
  }

  DT_HOST_DEVICE void Add(float value, float left) {
    const float sum = high + value;
    const float added = sum - high;
    low += ((high - (sum - added)) + (value - added)) + left;
    high = sum;
  }

  DT_HOST_DEVICE double sum() const {
    return static_cast<double>(high) + static_cast<double>(low) + far;
  }
};

}  // namespace dtrain
