// Sums over rows, in an order that depends on the row alone; a part of simd_loops.h.
#pragma once

#include <cstdint>

#include "kernels/simd/simd_core.h"

namespace dtrain::kernels::DT_SIMD {
namespace {

inline double SumLanes(const F64x16& sum) {
  double lanes[16];
  StoreLanes(lanes, sum);
  for (int width = 8; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) {
      lanes[lane] += lanes[lane + width];
    }
  }
  return lanes[0];
}

template <int kSums>
struct Totals {
  float sum[kSums];
};

// Four sets of sixteen lanes; an element's lane follows from its place in the row, so the sum
// depends on the row alone.
inline float TotalOf(const Four& sum) {
  float lanes[16];
  Store(lanes, (sum.a + sum.b) + (sum.c + sum.d));
  for (int width = 8; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) {
      lanes[lane] += lanes[lane + width];
    }
  }
  return lanes[0];
}

// Sums of products over a row: body(io, i, add) calls add(k, x, y) for the products of sum k. One
// sum has 64 lanes; several have 32 each, for which sixteen registers have room.
template <int kSums, class Body>
DT_FLATTEN Totals<kSums> SumsOfProducts(int64_t n, Body body) {
  Two low[kSums];
  Two high[kSums];
  for (int k = 0; k < kSums; ++k) {
    low[k] = high[k] = kSetBoth(0.0F);
  }
  const auto add_low = [&](int k, const Two& x, const Two& y) { low[k] = Fma(x, y, low[k]); };
  const auto add_high = [&](int k, const Two& x, const Two& y) {
    Two& sum = kSums == 1 ? high[k] : low[k];
    sum = Fma(x, y, sum);
  };
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    if constexpr (kManyRegisters) {
      body(FourWhole{}, i, [&](int k, const Four& x, const Four& y) {
        add_low(k, {x.a, x.b}, {y.a, y.b});
        add_high(k, {x.c, x.d}, {y.c, y.d});
      });
    } else {
      body(TwoWhole{}, i, add_low);
      body(TwoWhole{}, i + 32, add_high);
    }
  }
  const auto add = [&](int k, F32x16 x, F32x16 y) { low[k].a = Fma(x, y, low[k].a); };
  for (; i + 16 <= n; i += 16) {
    body(Whole{}, i, add);
  }
  if (i < n) {
    body(Part{n - i}, i, add);
  }
  Totals<kSums> totals;
  for (int k = 0; k < kSums; ++k) {
    totals.sum[k] = TotalOf({low[k].a, low[k].b, high[k].a, high[k].b});
  }
  return totals;
}

// One sum; body(io, i, add) calls add(x, y).
template <class Body>
DT_FLATTEN float SumProducts(int64_t n, Body body) {
  return SumsOfProducts<1>(n,
                           [&](auto io, int64_t i, auto add) {
                             body(io, i, [&](const auto& x, const auto& y) { add(0, x, y); });
                           })
      .sum[0];
}

}  // namespace
}  // namespace dtrain::kernels::DT_SIMD
