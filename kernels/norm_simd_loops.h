// The rows of RMSNorm and LayerNorm on F32x16; a part of simd_loops.h.
//
// A row is read more than once: first for its sums, then to write its results. The second time it
// comes from the cache, and the loop asks for the next row meanwhile.
#pragma once

#include <cstdint>

#include "kernels/layernorm.h"
#include "kernels/rmsnorm.h"
#include "kernels/simd_core.h"

namespace dtrain::kernels::DT_SIMD {
namespace {

// What a norm's forward is of: x, or x + residual as the backward will see it, rounded to T.
template <class T, bool kAdd>
struct NormInput {
  const T* x;
  const T* residual;

  template <class Io>
  auto Read(Io io, int64_t i) const {
    if constexpr (kAdd) {
      return RoundedTo<T>(io.Read(x + i) + io.Read(residual + i));
    } else {
      return io.Read(x + i);
    }
  }
  template <class Io>
  void Ahead(Io io, int64_t i) const {
    PrefetchFor(io, x + i);
    if constexpr (kAdd) {
      PrefetchFor(io, residual + i);
    }
  }
};

template <class T, bool kAdd, class Args>
NormInput<T, kAdd> InputRow(const Args& args, int64_t row) {
  return {args.x + row * args.hidden, kAdd ? args.residual + row * args.hidden : nullptr};
}

// ---- RMSNorm ----

template <class T, bool kAdd>
void RmsNormForwardRows(const RmsNormForwardArgs<T>& args, int64_t begin, int64_t end,
                        Write write) {
  const int64_t n = args.hidden;
  const T* const weight = args.weight;
  for (int64_t row = begin; row < end; ++row) {
    const NormInput<T, kAdd> h = InputRow<T, kAdd>(args, row);
    const float squares = SumProducts(n, [&](auto io, int64_t i, auto add) {
      const auto value = h.Read(io, i);
      add(value, value);
    });
    const float rstd = 1.0F / __builtin_sqrtf(squares / static_cast<float>(n) + args.eps);
    args.rstd[row] = rstd;
    T* const y = args.y + row * n;
    T* const sum = kAdd ? args.sum + row * n : nullptr;
    EachUnfenced(n, y, write, [&](auto io, int64_t i) {
      h.Ahead(io, n + i);
      const auto value = h.Read(io, i);
      if constexpr (kAdd) {
        io.WriteOut(sum + i, value);
      }
      io.WriteOut(y + i, value * io.kSetAll(rstd) * io.Read(weight + i));
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
template <class T, bool kAdd>
void RmsNormBackwardRows(const RmsNormBackwardArgs<T>& args, int64_t begin, int64_t end,
                         float* partial, Write write) {
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
      add(io.Read(dy + i) * io.Read(weight + i), io.Read(h + i));
    });
    const float slope = -(dot / static_cast<float>(n) * rstd * rstd * rstd);
    EachUnfenced(n, dh, write, [&](auto io, int64_t i) {
      PrefetchFor(io, h + n + i);
      PrefetchFor(io, dy + n + i);
      const auto along_u = io.kSetAll(rstd);
      const auto d = io.Read(dy + i);
      const auto x = io.Read(h + i);
      auto gradient = Fma(x, io.kSetAll(slope), d * io.Read(weight + i) * along_u);
      if constexpr (kAdd) {
        PrefetchFor(io, dsum + n + i);
        gradient = gradient + io.Read(dsum + i);
      }
      io.template WriteAs<T>(partial + i, Fma(d, x * along_u, io.template ReadAs<T>(partial + i)));
      io.WriteOut(dh + i, gradient);
    });
  }
  StreamFence();
}

template <class T>
void RmsNormBackward(const RmsNormBackwardArgs<T>& args, int64_t begin, int64_t end, float* partial,
                     Write write) {
  if (args.dsum != nullptr) {
    RmsNormBackwardRows<T, true>(args, begin, end, partial, write);
  } else {
    RmsNormBackwardRows<T, false>(args, begin, end, partial, write);
  }
}

// ---- LayerNorm ----

template <class T, bool kAdd, bool kBias>
void LayerNormForwardRows(const LayerNormForwardArgs<T>& args, int64_t begin, int64_t end,
                          Write write) {
  const int64_t n = args.hidden;
  const T* const weight = args.weight;
  const T* const bias = args.bias;
  for (int64_t row = begin; row < end; ++row) {
    const NormInput<T, kAdd> h = InputRow<T, kAdd>(args, row);
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
    T* const sum = kAdd ? args.sum + row * n : nullptr;
    EachUnfenced(n, y, write, [&](auto io, int64_t i) {
      h.Ahead(io, n + i);
      const auto value = h.Read(io, i);
      if constexpr (kAdd) {
        io.WriteOut(sum + i, value);
      }
      const auto normal = (value - io.kSetAll(mean)) * io.kSetAll(rstd);
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
template <class T, bool kAdd>
void LayerNormBackwardRows(const LayerNormBackwardArgs<T>& args, int64_t begin, int64_t end,
                           float* partial, Write write) {
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
      const auto u = io.Read(dy + i) * io.Read(weight + i);
      add(0, u, io.kSetAll(1.0F));
      add(1, u, normal(io, io.Read(h + i)));
    });
    const float mean_u = totals.sum[0] / static_cast<float>(n);
    const float slope = -(totals.sum[1] / static_cast<float>(n));
    EachUnfenced(n, dh, write, [&](auto io, int64_t i) {
      PrefetchFor(io, h + n + i);
      PrefetchFor(io, dy + n + i);
      const auto d = io.Read(dy + i);
      const auto z = normal(io, io.Read(h + i));
      auto gradient = Fma(z, io.kSetAll(slope), d * io.Read(weight + i) - io.kSetAll(mean_u)) *
                      io.kSetAll(rstd);
      if constexpr (kAdd) {
        PrefetchFor(io, dsum + n + i);
        gradient = gradient + io.Read(dsum + i);
      }
      io.template WriteAs<T>(partial + i, Fma(d, z, io.template ReadAs<T>(partial + i)));
      io.template WriteAs<T>(dbias + i, d + io.template ReadAs<T>(dbias + i));
      io.WriteOut(dh + i, gradient);
    });
  }
  StreamFence();
}

template <class T>
void LayerNormBackward(const LayerNormBackwardArgs<T>& args, int64_t begin, int64_t end,
                       float* partial, Write write) {
  if (args.dsum != nullptr) {
    LayerNormBackwardRows<T, true>(args, begin, end, partial, write);
  } else {
    LayerNormBackwardRows<T, false>(args, begin, end, partial, write);
  }
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
