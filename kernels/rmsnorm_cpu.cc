#include "base/check.h"
#include "kernels/rmsnorm.h"
#include "kernels/simd_table.h"
#include "kernels/write_mode.h"

namespace dtrain::kernels {
namespace {

// Rows that make up at least the element grain.
int64_t RowGrain(int64_t hidden) { return std::max<int64_t>(1, kElementGrain / hidden); }

template <class T, class Loop>
void Forward(const RmsNormForwardArgs<T>& args, ParallelFor parallel_for, Loop loop) {
  DT_CHECK_GT(args.hidden, 0);
  DT_CHECK((args.residual == nullptr) == (args.sum == nullptr)) << " residual and sum go together";
  const int64_t bytes = args.tokens * args.hidden * static_cast<int64_t>(sizeof(T));
  const Write write = WriteFor(bytes, args.y == args.x || args.y == args.residual);
  parallel_for(args.tokens, RowGrain(args.hidden),
               [&](int64_t begin, int64_t end) { loop(args, begin, end, write); });
}

template <class T, class BackwardLoop, class RoundLoop>
void Backward(const RmsNormBackwardArgs<T>& args, ParallelFor parallel_for, BackwardLoop loop,
              RoundLoop round) {
  DT_CHECK_GT(args.hidden, 0);
  const int64_t bytes = args.tokens * args.hidden * static_cast<int64_t>(sizeof(T));
  const bool in_place = args.dh == args.dy || args.dh == args.dsum || args.dh == args.h;
  const Write write = WriteFor(bytes, in_place);
  const int64_t chunk_rows = RmsNormChunkRows(args.tokens);
  const int64_t chunks = RmsNormChunks(args.tokens);
  float* const partials = args.workspace;
  parallel_for(chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t first = chunk * chunk_rows;
      loop(args, first, std::min(first + chunk_rows, args.tokens), partials + chunk * args.hidden,
           write);
    }
  });
  // Every column adds its chunks in order, into the first one's place.
  parallel_for(args.hidden, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = 1; chunk < chunks; ++chunk) {
      const float* const from = partials + chunk * args.hidden;
      for (int64_t i = begin; i < end; ++i) {
        partials[i] += from[i];
      }
    }
    if (chunks > 0) {
      round(end - begin, partials + begin, args.dweight + begin, 1.0F, Write::kCached);
    } else {
      std::fill(args.dweight + begin, args.dweight + end, T{});
    }
  });
}

}  // namespace

void RmsNormForwardCpu(const RmsNormForwardArgs<float>& args, ParallelFor parallel_for) {
  Forward(args, parallel_for, ActiveTable().rmsnorm_forward_f32);
}

void RmsNormForwardCpu(const RmsNormForwardArgs<BFloat16>& args, ParallelFor parallel_for) {
  Forward(args, parallel_for, ActiveTable().rmsnorm_forward_bf16);
}

void RmsNormBackwardCpu(const RmsNormBackwardArgs<float>& args, ParallelFor parallel_for) {
  const SimdTable& table = ActiveTable();
  Backward(args, parallel_for, table.rmsnorm_backward_f32, table.scale[kFlatF32][kFlatF32]);
}

void RmsNormBackwardCpu(const RmsNormBackwardArgs<BFloat16>& args, ParallelFor parallel_for) {
  const SimdTable& table = ActiveTable();
  Backward(args, parallel_for, table.rmsnorm_backward_bf16, table.scale[kFlatF32][kFlatBf16]);
}

}  // namespace dtrain::kernels
