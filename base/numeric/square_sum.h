// Sums of squares of fp32 numbers to 1e-12 of themselves, for most numbers without fp64, of which
// some GPUs have one unit for 64 of fp32. Each square and each sum is kept with what its rounding
// left over (Dekker 1971, doi 10.1007/BF01397083; the sum is Knuth's TwoSum).
#pragma once

#include <cmath>

#include "base/numeric/host_device.h"

namespace dtrain {

// Begins as {}. For up to 4,096 numbers: `high` would overflow otherwise.
struct PairedSquareSum {
  float high;
  float low;   // The rounding errors of `high`.
  double far;  // The squares that fp32 does not hold.

  // Adds the squares of x [kCount].
  template <int kCount>
  DT_HOST_DEVICE void Add(const float* x) {
    float largest = 0;
    for (int i = 0; i < kCount; ++i) {
      largest = fmaxf(largest, fabsf(x[i]));
    }
    // Numbers that are much smaller than the largest add nothing to it. fmaxf passes NaN over, and
    // the sum below keeps it.
    if (largest != 0 && !(largest > 0x1p-50F && largest < 0x1p57F)) {
      for (int i = 0; i < kCount; ++i) {
        far += static_cast<double>(x[i]) * static_cast<double>(x[i]);
      }
      return;
    }
    for (int i = 0; i < kCount; ++i) {
      // With fmaf no compiler joins the product and the sum below.
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
