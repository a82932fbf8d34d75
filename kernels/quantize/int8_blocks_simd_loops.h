// Blocks of int8 on F32x16; a part of simd_loops.h.
#pragma once

#include <cstdint>

#include "kernels/quantize/int8_blocks_math.h"
#include "kernels/simd/simd_core.h"
#include "kernels/simd/simd_sums.h"

namespace dtrain::kernels::DT_SIMD {
namespace {

template <class T>
Int8Scale ScaleOfBlock(const T* x, int64_t n) {
  Four largest = kSetFour(0.0F);
  Four poison = largest;  // 0 * infinity and 0 * NaN are NaN.
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const Four value = LoadFour(x + i);
    largest = Max(Abs(value), largest);
    poison = Fma(value, kSetFour(0.0F), poison);
  }
  EachSixteen(n - i, [&](auto io, int64_t at) {
    const F32x16 value = io.Read(x + i + at);
    largest.a = Max(Abs(value), largest.a);
    poison.a = Fma(value, Set(0.0F), poison.a);
  });
  float lanes[16];
  Store(lanes, Max(Max(largest.a, largest.b), Max(largest.c, largest.d)));
  float most = 0;
  for (const float lane : lanes) {
    most = lane > most ? lane : most;
  }
  return MakeInt8Scale(most, TotalOf(poison));
}

template <class T, bool kError>
void QuantizeBlock(int64_t n, const T* x, int8_t* values, float* error, Int8Scale block) {
  const F32x16 inverse = Set(block.inverse);
  // A NaN or an infinity times 0 is no integer; such a block's values are 0.
  if (block.inverse == 0.0F) {
    for (int64_t i = 0; i < n; ++i) {
      values[i] = 0;
    }
  }
  const F32x16 scale = Set(block.scale);
  const bool usable = block.inverse != 0.0F;
  EachSixteen(n, [&](auto io, int64_t i) {
    const F32x16 value = io.Read(x + i);
    const F32x16 rounded = usable ? Round(value * inverse) : Set(0.0F);
    if (usable) {
      io.Write(values + i, rounded);
    }
    if constexpr (kError) {
      io.Write(error + i, value - rounded * scale);
    }
  });
}

template <class T>
void QuantizeInt8(const QuantizeInt8Args& args, int64_t begin, int64_t end) {
  const auto* const src = static_cast<const T*>(args.src.data);
  for (int64_t block = begin; block < end; ++block) {
    const int64_t first = block * args.block;
    const int64_t n = args.n - first < args.block ? args.n - first : args.block;
    const Int8Scale scale = ScaleOfBlock(src + first, n);
    args.scales[block] = scale.scale;
    if (args.error != nullptr) {
      QuantizeBlock<T, true>(n, src + first, args.values + first, args.error + first, scale);
    } else {
      QuantizeBlock<T, false>(n, src + first, args.values + first, nullptr, scale);
    }
  }
}

template <class T>
void DequantizeInt8(const DequantizeInt8Args& args, int64_t begin, int64_t end, Write write) {
  auto* const dst = static_cast<T*>(args.dst.data);
  for (int64_t block = begin; block < end; ++block) {
    const int64_t first = block * args.block;
    const int64_t n = args.n - first < args.block ? args.n - first : args.block;
    const int8_t* const values = args.values + first;
    T* const out = dst + first;
    const F32x16 scale = Set(args.scales[block]);
    if (args.accumulate) {
      EachSixteen(n, [&](auto io, int64_t i) {
        io.Write(out + i, io.Read(out + i) + io.Read(values + i) * scale);
      });
    } else {
      EachSixteenUnfenced(n, out, write, [&](auto io, int64_t i) {
        io.WriteOut(out + i, io.Read(values + i) * scale);
      });
    }
  }
  StreamFence();
}

constexpr Int8BlockLoops kInt8BlockLoops = {
    .quantize = {QuantizeInt8<float>, QuantizeInt8<BFloat16>},
    .dequantize = {DequantizeInt8<float>, DequantizeInt8<BFloat16>},
};

}  // namespace
}  // namespace dtrain::kernels::DT_SIMD
