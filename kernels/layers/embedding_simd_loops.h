// Sums of gathered rows on F32x16; a part of simd_loops.h.
#pragma once

#include <cstdint>

#include "kernels/layers/embedding.h"
#include "kernels/simd/simd_core.h"

namespace dtrain::kernels::DT_SIMD {
namespace {

// Columns of a row whose sums stay in the innermost cache.
constexpr int64_t kSumColumns = 2048;

// Adds the n columns at `row`, of one token, to `sums`, and asks for `next`'s. The first token's
// begin the sums, the last one's end them in `out`.
template <bool kFirst, bool kLast, class T>
void AddToken(int64_t n, const T* row, const T* next, float* sums, T* out, Write write) {
  const auto body = [&](auto io, int64_t i) {
    PrefetchFarFor(io, next + i);
    auto sum = io.Read(row + i);
    if constexpr (!kFirst) {
      sum = io.template ReadAs<T>(sums + i) + sum;
    }
    if constexpr (kLast) {
      io.WriteOut(out + i, sum);
    } else {
      io.template WriteAs<T>(sums + i, sum);
    }
  };
  if constexpr (kLast) {
    EachUnfenced(n, out, write, body);
  } else {
    Each(n, body);
  }
}

// The sum of the rows of tokens order[0, count) in order; `known` of `order` can be read.
template <class T>
void SumRows(const T* dy, int64_t width, const int64_t* order, int64_t count, int64_t known, T* out,
             Write write) {
  alignas(kLineBytes) float sums[kSumColumns];
  for (int64_t column = 0; column < width; column += kSumColumns) {
    const int64_t left = width - column;
    const int64_t n = left < kSumColumns ? left : kSumColumns;
    for (int64_t i = 0; i < count; ++i) {
      const T* const row = dy + order[i] * width + column;
      const T* const next = dy + order[i + 1 < known ? i + 1 : i] * width + column;
      T* const to = out + column;
      const bool last = i + 1 == count;
      if (i == 0) {
        last ? AddToken<true, true>(n, row, next, sums, to, write)
             : AddToken<true, false>(n, row, next, sums, to, write);
      } else {
        last ? AddToken<false, true>(n, row, next, sums, to, write)
             : AddToken<false, false>(n, row, next, sums, to, write);
      }
    }
  }
}

// Rows [begin, end) of the table.
template <class T>
void EmbeddingBackward(const EmbeddingBackwardArgs<T>& args, int64_t begin, int64_t end,
                       Write write) {
  const int64_t width = args.width;
  for (int64_t v = begin; v < end; ++v) {
    T* const out = args.dweight + v * width;
    const int64_t first = args.starts[v];
    const int64_t count = v == args.padding_index ? 0 : args.starts[v + 1] - first;
    if (count == 0) {
      EachUnfenced(width, out, write,
                   [&](auto io, int64_t i) { io.WriteOut(out + i, io.kSetAll(0.0F)); });
    } else {
      SumRows(args.dy, width, args.order + first, count, args.tokens - first, out, write);
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
