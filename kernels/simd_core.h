// What every family of loops is written with: how sixteen elements are read and written, loops over
// ranges, and sums in a fixed order. Included by simd_loops.h after a simd_bits_*.h, with DT_SIMD
// naming that file's namespace.
//
// A loop takes sixteen elements at a time; the last few go through a zero-filled copy and the same
// code, so an element's bits never depend on where a range begins or ends.
#pragma once

#include <cstdint>

#include "kernels/simd_table.h"

namespace dtrain::kernels::DT_SIMD {
namespace {

constexpr auto kSet = [](float x) { return Set(x); };
constexpr auto kSetWord = [](uint32_t x) { return SetWord(x); };

// How a loop body reads and writes its sixteen elements.
struct Whole {
  template <class T>
  F32x16 Read(const T* p) const {
    return Load(p);
  }
  template <class T>
  void Write(T* p, F32x16 x) const {
    Store(p, x);
  }
  template <class T>
  void WriteOut(T* p, F32x16 x) const {
    Store(p, x);
  }
  // x with zeros where no element is: what was read is zero there, what is made of it may not be.
  F32x16 Keep(F32x16 x) const { return x; }
};
struct WholeStream : Whole {
  template <class T>
  void WriteOut(T* p, F32x16 x) const {
    Stream(p, x);
  }
};
struct Part {
  int64_t count;  // Fewer than 16.

  template <class T>
  F32x16 Read(const T* p) const {
    T copy[16] = {};
    __builtin_memcpy(copy, p, static_cast<uint64_t>(count) * sizeof(T));
    return Load(copy);
  }
  template <class T>
  void Write(T* p, F32x16 x) const {
    T copy[16];
    Store(copy, x);
    __builtin_memcpy(p, copy, static_cast<uint64_t>(count) * sizeof(T));
  }
  template <class T>
  void WriteOut(T* p, F32x16 x) const {
    Write(p, x);
  }
  F32x16 Keep(F32x16 x) const {
    float copy[16];
    Store(copy, x);
    return Read(copy);
  }
};

// The loops pull their bodies in: a call for every sixteen elements would load each constant anew.
#define DT_FLATTEN __attribute__((flatten))

// Runs body(io, i) over [0, n) by sixteens.
template <class Body>
DT_FLATTEN void EachSixteen(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    body(Whole{}, i);
  }
  if (i < n) {
    body(Part{n - i}, i);
  }
}

// The same, where io.WriteOut goes past the caches if `write` says so. `out` is the buffer that
// decides alignment: streaming stores need whole aligned sixteens. Whoever calls this runs
// StreamFence() before the range is handed over: a fence for each row would stop its stores.
template <class T, class Body>
DT_FLATTEN void EachSixteenUnfenced(int64_t n, const T* out, Write write, Body body) {
  constexpr uint64_t kBytes = 16 * sizeof(T);
  const uint64_t misaligned = reinterpret_cast<uint64_t>(out) % kBytes;
  if (write == Write::kCached || misaligned % sizeof(T) != 0) {
    EachSixteen(n, body);
    return;
  }
  int64_t i = misaligned == 0 ? 0 : static_cast<int64_t>((kBytes - misaligned) / sizeof(T));
  i = i < n ? i : n;
  if (i > 0) {
    body(Part{i}, int64_t{0});
  }
  for (; i + 16 <= n; i += 16) {
    body(WholeStream{}, i);
  }
  if (i < n) {
    body(Part{n - i}, i);
  }
}

// The same with its fence.
template <class T, class Body>
DT_FLATTEN void EachSixteen(int64_t n, const T* out, Write write, Body body) {
  EachSixteenUnfenced(n, out, write, body);
  StreamFence();
}

// `write`, if both results are aligned alike: otherwise only cached stores are safe.
template <class T>
Write WriteAlike(const T* a, const T* b, Write write) {
  const uint64_t apart = reinterpret_cast<uint64_t>(a) - reinterpret_cast<uint64_t>(b);
  return apart % (16 * sizeof(T)) == 0 ? write : Write::kCached;
}

// Asks for the line of p. Loops that read a row twice ask for the next row while they write this
// one: otherwise memory would not be read meanwhile. Any address will do.
inline void Prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }

// ---- Sums ----

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

// Four sets of sixteen fp32 lanes; lane by place in the row, so the sum depends on the row alone.
struct RowSum {
  F32x16 part[4] = {Set(0.0F), Set(0.0F), Set(0.0F), Set(0.0F)};

  float Total() const {
    float lanes[16];
    Store(lanes, (part[0] + part[1]) + (part[2] + part[3]));
    for (int width = 8; width > 0; width /= 2) {
      for (int lane = 0; lane < width; ++lane) {
        lanes[lane] += lanes[lane + width];
      }
    }
    return lanes[0];
  }
};

template <int kSums>
struct Pairs {
  F32x16 a[kSums], b[kSums];
};
using Pair = Pairs<1>;

template <int kSums>
struct Totals {
  float sum[kSums];
};

// Adds up a[k] * b[k] over a row for each k, where body(io, i) gives the pairs.
template <int kSums, class Body>
DT_FLATTEN Totals<kSums> SumsOfProducts(int64_t n, Body body) {
  RowSum sums[kSums];
  const auto add = [&](auto io, int lane_set, int64_t at) {
    const Pairs<kSums> pairs = body(io, at);
    for (int k = 0; k < kSums; ++k) {
      sums[k].part[lane_set] = Fma(pairs.a[k], pairs.b[k], sums[k].part[lane_set]);
    }
  };
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    add(Whole{}, 0, i);
    add(Whole{}, 1, i + 16);
    add(Whole{}, 2, i + 32);
    add(Whole{}, 3, i + 48);
  }
  for (int lane_set = 0; i < n; ++lane_set, i += 16) {
    if (i + 16 <= n) {
      add(Whole{}, lane_set, i);
    } else {
      add(Part{n - i}, lane_set, i);
    }
  }
  Totals<kSums> totals;
  for (int k = 0; k < kSums; ++k) {
    totals.sum[k] = sums[k].Total();
  }
  return totals;
}

template <class Body>
DT_FLATTEN float SumProducts(int64_t n, Body body) {
  return SumsOfProducts<1>(n, body).sum[0];
}

}  // namespace
}  // namespace dtrain::kernels::DT_SIMD
