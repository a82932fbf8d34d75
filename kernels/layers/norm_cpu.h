// Helpers that the CPU entries of the norms share. Private to this room.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "base/threads/parallel_for.h"
#include "kernels/cuda/row_chunks.h"
#include "kernels/simd/simd_table.h"
#include "kernels/write_mode.h"

namespace dtrain::kernels {

// Rows that make up at least the element grain.
inline int64_t RowGrain(int64_t hidden) { return std::max<int64_t>(1, kElementGrain / hidden); }

// body(chunk, first, last) for the rows [first, last) of every chunk.
template <class Body>
void EachRowChunk(int64_t tokens, ParallelFor parallel_for, Body body) {
  const int64_t rows = RowChunkRows(tokens);
  parallel_for(RowChunks(tokens), 1, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      body(chunk, chunk * rows, std::min((chunk + 1) * rows, tokens));
    }
  });
}

// out [hidden]: the sum of `chunks` rows of partials, `stride` apart, in order and rounded once.
// Uses the first row's place. No chunks: 0.
template <class T>
void SumRowChunks(float* partials, int64_t chunks, int64_t stride, int64_t hidden, T* out,
                  ParallelFor parallel_for) {
  const ConvertLoop round =
      ActiveTable().scale[kFlatF32][sizeof(T) == sizeof(float) ? kFlatF32 : kFlatBf16];
  parallel_for(hidden, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = 1; chunk < chunks; ++chunk) {
      const float* const from = partials + chunk * stride;
      for (int64_t i = begin; i < end; ++i) {
        partials[i] += from[i];
      }
    }
    if (chunks > 0) {
      round(end - begin, partials + begin, out + begin, 1.0F, Write::kCached);
    } else {
      std::fill(out + begin, out + end, T{});
    }
  });
}

// The rows of a norm's forward by `loop`.
template <template <class> class Args, class T, class Loop>
void NormForward(const Args<T>& args, ParallelFor parallel_for, Loop loop) {
  DT_CHECK_GT(args.hidden, 0);
  DT_CHECK((args.residual == nullptr) == (args.sum == nullptr)) << " residual and sum go together";
  const int64_t bytes = args.tokens * args.hidden * static_cast<int64_t>(sizeof(T));
  const bool in_place = args.y == args.x || args.y == args.residual ||
                        (args.sum != nullptr && (args.sum == args.x || args.sum == args.residual));
  const Write write = WriteFor(bytes, in_place);
  parallel_for(args.tokens, RowGrain(args.hidden),
               [&](int64_t begin, int64_t end) { loop(args, begin, end, write); });
}

// The rows of a norm's backward by `loop`, whose partial sums of a chunk are kPartials rows of the
// workspace; sums the chunks of row k into results[k], where that is not null.
template <int kPartials, template <class> class Args, class T, class Loop>
void NormBackward(const Args<T>& args, T* const (&results)[kPartials], ParallelFor parallel_for,
                  Loop loop) {
  DT_CHECK_GT(args.hidden, 0);
  const int64_t bytes = args.tokens * args.hidden * static_cast<int64_t>(sizeof(T));
  const bool in_place = args.dh == args.dy || args.dh == args.dsum || args.dh == args.h;
  const Write write = WriteFor(bytes, in_place);
  const int64_t stride = kPartials * args.hidden;
  EachRowChunk(args.tokens, parallel_for, [&](int64_t chunk, int64_t first, int64_t last) {
    loop(args, first, last, args.workspace + chunk * stride, write);
  });
  for (int k = 0; k < kPartials; ++k) {
    if (results[k] != nullptr) {
      SumRowChunks(args.workspace + k * args.hidden, RowChunks(args.tokens), stride, args.hidden,
                   results[k], parallel_for);
    }
  }
}

}  // namespace dtrain::kernels
