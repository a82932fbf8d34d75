// Sums of gathered rows on F32x16; a part of simd_loops.h.
#pragma once

#include <cstdint>

#include "kernels/embedding.h"
#include "kernels/simd_core.h"

namespace dtrain::kernels::DT_SIMD {
namespace {

// The columns of `io` at `column`, summed over tokens order[0, count).
template <class Io, class T>
void AddRows(Io io, const T* dy, int64_t width, const int64_t* order, int64_t count, int64_t column,
             T* out) {
  const T* const first = dy + order[0] * width + column;
  PrefetchAhead(io, first);
  auto sum = io.Read(first);
  for (int64_t i = 1; i < count; ++i) {
    sum = sum + io.Read(dy + order[i] * width + column);
  }
  io.WriteOut(out + column, sum);
}

// Rows [begin, end) of the table.
template <class T>
void EmbeddingBackward(const EmbeddingBackwardArgs<T>& args, int64_t begin, int64_t end,
                       Write write) {
  const int64_t width = args.width;
  for (int64_t v = begin; v < end; ++v) {
    T* const out = args.dweight + v * width;
    const int64_t* const order = args.order + args.starts[v];
    const int64_t count = v == args.padding_index ? 0 : args.starts[v + 1] - args.starts[v];
    if (count == 0) {
      EachUnfenced(width, out, write,
                   [&](auto io, int64_t i) { io.WriteOut(out + i, io.kSetAll(0.0F)); });
    } else {
      EachUnfenced(width, out, write,
                   [&](auto io, int64_t i) { AddRows(io, args.dy, width, order, count, i, out); });
    }
  }
  StreamFence();
}

constexpr EmbeddingLoops kEmbeddingLoops = {
    .backward_f32 = EmbeddingBackward<float>,
    .backward_bf16 = EmbeddingBackward<BFloat16>,
};

}  // namespace
}  // namespace dtrain::kernels::DT_SIMD
