// The scalar loops: the oracle of the SIMD levels in tests, and the code for CPUs without AVX2.
#include <cstdint>

#include "base/numeric/float16.h"
#include "comm/collectives/reduce.h"
#include "comm/collectives/reduce_loops.h"

namespace dtrain::comm {
namespace {

struct Lanes {
  float v[16];

  template <LaneFormat kFormat>
  static Lanes Load(const void* base, size_t index) {
    Lanes r;
    for (size_t i = 0; i < 16; ++i) {
      if constexpr (kFormat == LaneFormat::kBFloat16) {
        r.v[i] = ToFloat(static_cast<const BFloat16*>(base)[index + i]);
      } else if constexpr (kFormat == LaneFormat::kFloat16) {
        r.v[i] = ToFloat(static_cast<const Float16*>(base)[index + i]);
      } else if constexpr (kFormat == LaneFormat::kFloat32AsBFloat16) {
        r.v[i] = ToFloat(ToBFloat16(static_cast<const float*>(base)[index + i]));
      } else if constexpr (kFormat == LaneFormat::kFloat32AsFloat16) {
        r.v[i] = ToFloat(ToFloat16(static_cast<const float*>(base)[index + i]));
      } else {
        r.v[i] = static_cast<const float*>(base)[index + i];
      }
    }
    return r;
  }
  template <LaneFormat kFormat>
  static Lanes Round(Lanes a) {
    for (float& x : a.v) {
      if constexpr (RoundedToFloat16(kFormat)) {
        x = ToFloat(ToFloat16(x));
      } else if constexpr (kFormat != LaneFormat::kFloat32) {
        x = ToFloat(ToBFloat16(x));
      }
    }
    return a;
  }
  // REQUIRES: `a` went through Round.
  template <LaneFormat kFormat>
  static void Store(void* base, size_t index, Lanes a) {
    for (size_t i = 0; i < 16; ++i) {
      if constexpr (kFormat == LaneFormat::kBFloat16) {
        static_cast<BFloat16*>(base)[index + i] = ToBFloat16(a.v[i]);
      } else if constexpr (kFormat == LaneFormat::kFloat16) {
        static_cast<Float16*>(base)[index + i] = ToFloat16(a.v[i]);
      } else {
        static_cast<float*>(base)[index + i] = a.v[i];
      }
    }
  }
  static Lanes Add(Lanes a, Lanes b) {
    for (size_t i = 0; i < 16; ++i) {
      a.v[i] += b.v[i];
    }
    return a;
  }
  // Like the instruction maxps, it gives the second operand if neither is greater; a NaN in either
  // survives.
  static Lanes Max(Lanes a, Lanes b) {
    for (size_t i = 0; i < 16; ++i) {
      a.v[i] = a.v[i] > b.v[i] || a.v[i] != a.v[i] ? a.v[i] : b.v[i];
    }
    return a;
  }
  static Lanes Min(Lanes a, Lanes b) {
    for (size_t i = 0; i < 16; ++i) {
      a.v[i] = a.v[i] < b.v[i] || a.v[i] != a.v[i] ? a.v[i] : b.v[i];
    }
    return a;
  }
  static Lanes Divide(Lanes a, float divisor) {
    for (float& x : a.v) {
      x /= divisor;
    }
    return a;
  }
};

struct Squares {
  double lane[16] = {};

  // The product of two floats is exact in fp64, so a fused multiply-add gives the same bits.
  void AddSquares(Lanes a) {
    for (size_t i = 0; i < 16; ++i) {
      lane[i] += static_cast<double>(a.v[i]) * static_cast<double>(a.v[i]);
    }
  }
  double Fold() const {
    double four[4];
    for (size_t i = 0; i < 4; ++i) {
      four[i] = (lane[i] + lane[i + 8]) + (lane[i + 4] + lane[i + 12]);
    }
    return (four[0] + four[2]) + (four[1] + four[3]);
  }
};

#include "comm/collectives/reduce_loops_impl.h"

}  // namespace

ReduceLoop FindLoopScalar(LaneFormat format, ReduceOp op) { return Find(format, op); }

}  // namespace dtrain::comm
