// The rows of RMSNorm and LayerNorm on F32x16; a part of simd_loops.h.
//
// A row is read more than once: first for its sums, then to write its results. The second time it
// comes from the cache. The next row is asked for meanwhile, a backward's in both looks, and not
// further in than the second cache: a row of its three or four streams fills the innermost.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/layers/layernorm.h"
#include "kernels/layers/rmsnorm.h"
#include "kernels/simd/simd_core.h"
#include "kernels/simd/simd_sums.h"

namespace dtrain::kernels::DT_SIMD {
namespace {

// Elements of a row for which there is room beside its loops.
constexpr int64_t kRowRoom = 8192;

// A row that a forward normalises: h is x, or x + residual as the backward will see it. That sum is
// kept: to add and round it again costs more than to read it.
template <class T, bool kAdd>
struct NormRow {
  struct Room {  // Rows use it one after another.
    alignas(kLineBytes) T h[kAdd ? kRowRoom : 1];
  };

  const int64_t n;
  const T* const x;
  const T* const h;

  template <class Io>
  auto Read(Io io, int64_t i) const {
    return io.Read(h + i);
  }
  // Prefetches the same elements of the next row, during the last pass over this one.
  template <class Io>
  auto ReadLast(Io io, int64_t i) const {
    PrefetchFarFor(io, x + n + i);
    return Read(io, i);
  }
};

// Writes the sum and asks for the next row's residual, as the last look writes y and asks for the
// next x: memory that reads and writes at once moves more than by turns.
template <class T, bool kAdd, class Args>
NormRow<T, kAdd> BeginRow(const Args& args, int64_t row, typename NormRow<T, kAdd>::Room& room,
                          Write write) {
  const int64_t n = args.hidden;
  const T* const x = args.x + row * n;
  if constexpr (kAdd) {
    const T* const residual = args.residual + row * n;
    T* const sum = args.sum + row * n;
    const auto h = [=](auto io, int64_t i) {
      PrefetchFarFor(io, residual + n + i);
      return io.Read(x + i) + io.Read(residual + i);
    };
    if (n > kRowRoom) {
      Each(n, [&](auto io, int64_t i) { io.Write(sum + i, h(io, i)); });
      return {n, x, sum};
    }
    EachUnfenced<ByFew>(n, sum, write, [&](auto io, int64_t i) {
      const auto value = h(io, i);
      io.Write(room.h + i, value);
      io.WriteOut(sum + i, value);
    });
    return {n, x, room.h};
  } else {
    return {n, x, x};
  }
}

// A chunk's sums of a weight's gradient, in fp32 beside rows of T. Where every row begins at the
// same place of a line, they stay in the lanes of the loop that adds to them until its last row is
// done: to put them in order takes as many instructions as the rest of the loop.
template <class T, bool kInLanes>
struct ChunkSums {
  template <class Io>
  static auto Read(Io io, const float* p) {
    if constexpr (kInLanes) {
      return io.Read(p);
    } else {
      return io.template ReadAs<T>(p);
    }
  }
  template <class Io, class F>
  static void Write(Io io, float* p, const F& x) {
    if constexpr (kInLanes) {
      io.Write(p, x);
    } else {
      io.template WriteAs<T>(p, x);
    }
  }
  // Called after the last row. Its loop over `row` must be the one that added.
  static void PutInOrder(int64_t n, const T* row, ::dtrain::kernels::Write write, float* sums) {
    if constexpr (kInLanes) {
      EachUnfenced<ByFew>(n, row, write, [&](auto io, int64_t i) {
        io.template WriteAs<T>(sums + i, io.Read(sums + i));
      });
    }
  }
};

// rows(add, in_lanes), of whether there is a dsum to add and whether sums stay in lanes.
template <class T, class Rows>
void BackwardRows(const T* dsum, int64_t n, Rows rows) {
  const auto add_or_not = [&](auto in_lanes) {
    dsum != nullptr ? rows(std::true_type{}, in_lanes) : rows(std::false_type{}, in_lanes);
  };
  if constexpr (sizeof(T) < sizeof(float)) {
    if (n % static_cast<int64_t>(kLineBytes / sizeof(T)) == 0) {
      add_or_not(std::true_type{});
      return;
    }
  }
  add_or_not(std::false_type{});
}

// ---- RMSNorm ----

template <class T, bool kAdd>
void RmsNormForwardRows(const RmsNormForwardArgs<T>& args, int64_t begin, int64_t end,
                        Write write) {
  const int64_t n = args.hidden;
  const T* const weight = args.weight;
  typename NormRow<T, kAdd>::Room room;
  for (int64_t row = begin; row < end; ++row) {
    const NormRow<T, kAdd> h = BeginRow<T, kAdd>(args, row, room, write);
    const float squares = SumProducts(n, [&](auto io, int64_t i, auto add) {
      const auto value = h.Read(io, i);
      add(value, value);
    });
    const float rstd = 1.0F / __builtin_sqrtf(squares / static_cast<float>(n) + args.eps);
    args.rstd[row] = rstd;
    T* const y = args.y + row * n;
    EachUnfenced(n, y, write, [&](auto io, int64_t i) {
      io.WriteOut(y + i, h.ReadLast(io, i) * io.kSetAll(rstd) * io.Read(weight + i));
    });
  }
  StreamFence();
}

template <class T>
void RmsNormForward(const RmsNormForwardArgs<T>& args, int64_t begin, int64_t end, Write write) {
  if (args.residual != nullptr) {
    RmsNormForwardRows<T, true>(args, begin, end, WriteAlike(args.y, args.sum, write));
  } else {
    RmsNormForwardRows<T, false>(args, begin, end, write);
  }
}

// With u = dy * weight and r = rstd:  dh = r u - h r^3 mean(u h) + dsum;  dweight += dy h r.
template <class T, bool kAdd, bool kInLanes>
void RmsNormBackwardRows(const RmsNormBackwardArgs<T>& args, int64_t begin, int64_t end,
                         float* partial, Write write) {
  using Sums = ChunkSums<T, kInLanes>;
  const int64_t n = args.hidden;
  const T* const weight = args.weight;
  __builtin_memset(partial, 0, static_cast<uint64_t>(n) * sizeof(float));
  for (int64_t row = begin; row < end; ++row) {
    const T* const h = args.h + row * n;
    const T* const dy = args.dy + row * n;
    const T* const dsum = kAdd ? args.dsum + row * n : nullptr;
    T* const dh = args.dh + row * n;
    const float rstd = args.rstd[row];
    const float dot = SumProducts(n, [&](auto io, int64_t i, auto add) {
      PrefetchFarFor(io, h + n + i);
      add(io.Read(dy + i) * io.Read(weight + i), io.Read(h + i));
    });
    const float slope = -(dot / static_cast<float>(n) * rstd * rstd * rstd);
    EachUnfenced<ByFew>(n, dh, write, [&](auto io, int64_t i) {
      PrefetchFarFor(io, dy + n + i);
      const auto along_u = io.kSetAll(rstd);
      const auto d = io.Read(dy + i);
      const auto x = io.Read(h + i);
      auto gradient = Fma(x, io.kSetAll(slope), d * io.Read(weight + i) * along_u);
      if constexpr (kAdd) {
        PrefetchFarFor(io, dsum + n + i);
        gradient = gradient + io.Read(dsum + i);
      }
      Sums::Write(io, partial + i, Fma(d, x * along_u, Sums::Read(io, partial + i)));
      io.WriteOut(dh + i, gradient);
    });
  }
  Sums::PutInOrder(n, args.dh, write, partial);
  StreamFence();
}

template <class T>
void RmsNormBackward(const RmsNormBackwardArgs<T>& args, int64_t begin, int64_t end, float* partial,
                     Write write) {
  BackwardRows(args.dsum, args.hidden, [&](auto add, auto in_lanes) {
    RmsNormBackwardRows<T, add.value, in_lanes.value>(args, begin, end, partial, write);
  });
}

// ---- LayerNorm ----

template <class T, bool kAdd, bool kBias>
void LayerNormForwardRows(const LayerNormForwardArgs<T>& args, int64_t begin, int64_t end,
                          Write write) {
  const int64_t n = args.hidden;
  const T* const weight = args.weight;
  const T* const bias = args.bias;
  typename NormRow<T, kAdd>::Room room;
  for (int64_t row = begin; row < end; ++row) {
    const NormRow<T, kAdd> h = BeginRow<T, kAdd>(args, row, room, write);
    const float sum_of_row =
        SumProducts(n, [&](auto io, int64_t i, auto add) { add(h.Read(io, i), io.kSetAll(1.0F)); });
    const float mean = sum_of_row / static_cast<float>(n);
    const float squares = SumProducts(n, [&](auto io, int64_t i, auto add) {
      const auto value = io.Keep(h.Read(io, i) - io.kSetAll(mean));
      add(value, value);
    });
    const float rstd = 1.0F / __builtin_sqrtf(squares / static_cast<float>(n) + args.eps);
    args.mean[row] = mean;
    args.rstd[row] = rstd;
    T* const y = args.y + row * n;
    EachUnfenced(n, y, write, [&](auto io, int64_t i) {
      const auto normal = (h.ReadLast(io, i) - io.kSetAll(mean)) * io.kSetAll(rstd);
      if constexpr (kBias) {
        io.WriteOut(y + i, Fma(normal, io.Read(weight + i), io.Read(bias + i)));
      } else {
        io.WriteOut(y + i, normal * io.Read(weight + i));
      }
    });
  }
  StreamFence();
}

template <class T>
void LayerNormForward(const LayerNormForwardArgs<T>& args, int64_t begin, int64_t end,
                      Write write) {
  const bool bias = args.bias != nullptr;
  if (args.residual != nullptr) {
    const Write both = WriteAlike(args.y, args.sum, write);
    bias ? LayerNormForwardRows<T, true, true>(args, begin, end, both)
         : LayerNormForwardRows<T, true, false>(args, begin, end, both);
  } else {
    bias ? LayerNormForwardRows<T, false, true>(args, begin, end, write)
         : LayerNormForwardRows<T, false, false>(args, begin, end, write);
  }
}

// With u = dy * weight, z = (h - mean) r and r = rstd:
//   dh = r (u - mean(u) - z mean(u z)) + dsum;  dweight += dy z;  dbias += dy.
// `partial` has the weight's sums, then the bias's.
template <class T, bool kAdd, bool kInLanes>
void LayerNormBackwardRows(const LayerNormBackwardArgs<T>& args, int64_t begin, int64_t end,
                           float* partial, Write write) {
  using Sums = ChunkSums<T, kInLanes>;
  const int64_t n = args.hidden;
  const T* const weight = args.weight;
  float* const dbias = partial + n;
  __builtin_memset(partial, 0, static_cast<uint64_t>(2 * n) * sizeof(float));
  for (int64_t row = begin; row < end; ++row) {
    const T* const h = args.h + row * n;
    const T* const dy = args.dy + row * n;
    const T* const dsum = kAdd ? args.dsum + row * n : nullptr;
    T* const dh = args.dh + row * n;
    const float rstd = args.rstd[row];
    const float mean = args.mean[row];
    const auto normal = [=](auto io, const auto& value) {
      return (value - io.kSetAll(mean)) * io.kSetAll(rstd);
    };
    const Totals<2> totals = SumsOfProducts<2>(n, [&](auto io, int64_t i, auto add) {
      PrefetchFarFor(io, h + n + i);
      const auto u = io.Read(dy + i) * io.Read(weight + i);
      add(0, u, io.kSetAll(1.0F));
      add(1, u, normal(io, io.Read(h + i)));
    });
    const float mean_u = totals.sum[0] / static_cast<float>(n);
    const float slope = -(totals.sum[1] / static_cast<float>(n));
    EachUnfenced<ByFew>(n, dh, write, [&](auto io, int64_t i) {
      PrefetchFarFor(io, dy + n + i);
      const auto d = io.Read(dy + i);
      const auto z = normal(io, io.Read(h + i));
      auto gradient = Fma(z, io.kSetAll(slope), d * io.Read(weight + i) - io.kSetAll(mean_u)) *
                      io.kSetAll(rstd);
      if constexpr (kAdd) {
        PrefetchFarFor(io, dsum + n + i);
        gradient = gradient + io.Read(dsum + i);
      }
      Sums::Write(io, partial + i, Fma(d, z, Sums::Read(io, partial + i)));
      Sums::Write(io, dbias + i, d + Sums::Read(io, dbias + i));
      io.WriteOut(dh + i, gradient);
    });
  }
  Sums::PutInOrder(n, args.dh, write, partial);
  Sums::PutInOrder(n, args.dh, write, dbias);
  StreamFence();
}

template <class T>
void LayerNormBackward(const LayerNormBackwardArgs<T>& args, int64_t begin, int64_t end,
                       float* partial, Write write) {
  BackwardRows(args.dsum, args.hidden, [&](auto add, auto in_lanes) {
    LayerNormBackwardRows<T, add.value, in_lanes.value>(args, begin, end, partial, write);
  });
}

constexpr RmsNormLoops kRmsNormLoops = {
    .forward_f32 = RmsNormForward<float>,
    .forward_bf16 = RmsNormForward<BFloat16>,
    .backward_f32 = RmsNormBackward<float>,
    .backward_bf16 = RmsNormBackward<BFloat16>,
};
constexpr LayerNormLoops kLayerNormLoops = {
    .forward_f32 = LayerNormForward<float>,
    .forward_bf16 = LayerNormForward<BFloat16>,
    .backward_f32 = LayerNormBackward<float>,
    .backward_bf16 = LayerNormBackward<BFloat16>,
};

}  // namespace
}  // namespace dtrain::kernels::DT_SIMD
