// Rotary positions on F32x16; a part of simd_loops.h.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/layers/rope_math.h"
#include "kernels/simd/simd_core.h"

namespace dtrain::kernels::DT_SIMD {
namespace {

// A loop over a head by 64, by sixteens, then what is left. Every head of a call is aligned alike,
// so that `kStream` needs no way to its first aligned element.
template <bool kStream, class Body>
DT_FLATTEN void EachOfHead(int64_t n, Body body) {
  using FourIo = std::conditional_t<kStream, FourStream, FourWhole>;
  using Io = std::conditional_t<kStream, WholeStream, Whole>;
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    body(FourIo{}, i);
  }
  for (; i + 16 <= n; i += 16) {
    body(Io{}, i);
  }
  if (i < n) {
    body(Part{n - i}, i);
  }
}

template <bool kStream, class T>
void CopyHead(int64_t n, const T* in, T* out) {
  if (in != out) {
    EachOfHead<kStream>(n, [&](auto io, int64_t i) { io.WriteOut(out + i, io.Read(in + i)); });
  }
}

// cos and sin are of the token, `sign` is -1 for the inverse.
template <bool kStream, class T>
DT_FLATTEN void TurnHalves(int64_t half, const T* in, T* out, const float* cos, const float* sin,
                           float sign) {
  EachOfHead<kStream>(half, [&](auto io, int64_t i) {
    const auto a = io.Read(in + i);
    const auto b = io.Read(in + half + i);
    const auto c = io.template ReadAs<T>(cos + i);
    const auto s = io.template ReadAs<T>(sin + i);
    io.WriteOut(out + i, RopeTurn(a, b, c, s * io.kSetAll(-sign)));
    io.WriteOut(out + half + i, RopeTurn(b, a, c, s * io.kSetAll(sign)));
  });
}

// Each of eight elements twice, where sixteen (or the part of sixteen) lanes are read.
inline F32x16 ReadTwice(Whole /*io*/, const float* p) { return LoadTwice(p); }
inline F32x16 ReadTwice(Part io, const float* p) {
  float copy[8] = {};
  __builtin_memcpy(copy, p, static_cast<uint64_t>(io.count / 2) * sizeof(float));
  return LoadTwice(copy);
}

template <bool kStream, class T>
DT_FLATTEN void TurnNeighbours(int64_t rotary, const T* in, T* out, const float* cos,
                               const float* sin, float sign) {
  const F32x16 second_sign = Set(sign);
  const F32x16 first_sign = Set(-sign);
  int64_t i = 0;
  for (; i + 32 <= rotary; i += 32) {
    F32x16 a, b;
    LoadPairs(in + i, a, b);
    const F32x16 c = Load(cos + i / 2);
    const F32x16 s = Load(sin + i / 2);
    const F32x16 first = RopeTurn(a, b, c, s * first_sign);
    const F32x16 second = RopeTurn(b, a, c, s * second_sign);
    if constexpr (kStream) {
      StreamPairs(out + i, first, second);
    } else {
      StorePairs(out + i, first, second);
    }
  }
  EachSixteen(rotary - i, [&](auto io, int64_t at) {
    const int64_t element = i + at;
    const F32x16 x = io.Read(in + element);
    const F32x16 c = ReadTwice(io, cos + element / 2);
    const F32x16 s = NegateEven(ReadTwice(io, sin + element / 2) * second_sign);
    io.WriteOut(out + element, RopeTurn(x, SwapPairs(x), c, s));
  });
}

template <bool kStream, class T>
void RopeTokens(const RopeArgs<T>& args, int64_t begin, int64_t end) {
  const int64_t half = args.rotary_dim / 2;
  const float sign = args.inverse ? -1.0F : 1.0F;
  const int64_t rest = args.head_dim - args.rotary_dim;
  for (int64_t token = begin; token < end; ++token) {
    const int64_t position =  // A shared function must not be called: see simd_avx2.h.
        args.positions != nullptr ? args.positions[token] : token % args.sequence;
    const float* const cos = args.cos + position * half;
    const float* const sin = args.sin + position * half;
    for (const RopeHeads<T>& part : args.parts) {
      for (int64_t head = 0; head < part.heads; ++head) {
        const T* const in = part.in + token * part.in_stride + head * args.head_dim;
        T* const out = part.out + token * part.out_stride + head * args.head_dim;
        if (!part.rotate) {
          CopyHead<kStream>(args.head_dim, in, out);
          continue;
        }
        if (args.form == RopeForm::kHalfSplit) {
          TurnHalves<kStream>(half, in, out, cos, sin, sign);
        } else {
          TurnNeighbours<kStream>(args.rotary_dim, in, out, cos, sin, sign);
        }
        CopyHead<kStream>(rest, in + args.rotary_dim, out + args.rotary_dim);
      }
    }
  }
  StreamFence();
}

// Whether streaming stores may be used for every sixteen of every head.
template <class T>
bool HeadsAligned(const RopeArgs<T>& args) {
  const int64_t span = args.form == RopeForm::kHalfSplit ? args.rotary_dim / 2 : args.rotary_dim;
  constexpr int64_t kUnit = kLineBytes / sizeof(T);
  bool aligned = span % kUnit == 0 && args.head_dim % kUnit == 0;
  for (const RopeHeads<T>& part : args.parts) {
    aligned = aligned && reinterpret_cast<uint64_t>(part.out) % kLineBytes == 0 &&
              part.out_stride % kUnit == 0;
  }
  return aligned;
}

template <class T>
void Rope(const RopeArgs<T>& args, int64_t begin, int64_t end, Write write) {
  if (write == Write::kStream && HeadsAligned(args)) {
    RopeTokens<true>(args, begin, end);
  } else {
    RopeTokens<false>(args, begin, end);
  }
}

}  // namespace
}  // namespace dtrain::kernels::DT_SIMD
