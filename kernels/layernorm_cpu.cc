#include "base/check.h"
#include "kernels/layernorm.h"
#include "kernels/norm_cpu.h"

namespace dtrain::kernels {
namespace {

template <class T, class Loop>
void Forward(const LayerNormForwardArgs<T>& args, ParallelFor parallel_for, Loop loop) {
  DT_CHECK_GT(args.hidden, 0);
  DT_CHECK((args.residual == nullptr) == (args.sum == nullptr)) << " residual and sum go together";
  const int64_t bytes = args.tokens * args.hidden * static_cast<int64_t>(sizeof(T));
  const bool in_place = args.y == args.x || args.y == args.residual ||
                        (args.sum != nullptr && (args.sum == args.x || args.sum == args.residual));
  const Write write = WriteFor(bytes, in_place);
  parallel_for(args.tokens, RowGrain(args.hidden),
               [&](int64_t begin, int64_t end) { loop(args, begin, end, write); });
}

template <class T, class Loop>
void Backward(const LayerNormBackwardArgs<T>& args, ParallelFor parallel_for, Loop loop) {
  DT_CHECK_GT(args.hidden, 0);
  const int64_t bytes = args.tokens * args.hidden * static_cast<int64_t>(sizeof(T));
  const bool in_place = args.dh == args.dy || args.dh == args.dsum || args.dh == args.h;
  const Write write = WriteFor(bytes, in_place);
  const int64_t stride = 2 * args.hidden;
  EachRowChunk(args.tokens, parallel_for, [&](int64_t chunk, int64_t first, int64_t last) {
    loop(args, first, last, args.workspace + chunk * stride, write);
  });
  const int64_t chunks = RowChunks(args.tokens);
  SumRowChunks(args.workspace, chunks, stride, args.hidden, args.dweight, parallel_for);
  if (args.dbias != nullptr) {
    SumRowChunks(args.workspace + args.hidden, chunks, stride, args.hidden, args.dbias,
                 parallel_for);
  }
}

}  // namespace

void LayerNormForwardCpu(const LayerNormForwardArgs<float>& args, ParallelFor parallel_for) {
  Forward(args, parallel_for, ActiveTable().layer_norm.forward_f32);
}

void LayerNormForwardCpu(const LayerNormForwardArgs<BFloat16>& args, ParallelFor parallel_for) {
  Forward(args, parallel_for, ActiveTable().layer_norm.forward_bf16);
}

void LayerNormBackwardCpu(const LayerNormBackwardArgs<float>& args, ParallelFor parallel_for) {
  Backward(args, parallel_for, ActiveTable().layer_norm.backward_f32);
}

void LayerNormBackwardCpu(const LayerNormBackwardArgs<BFloat16>& args, ParallelFor parallel_for) {
  Backward(args, parallel_for, ActiveTable().layer_norm.backward_bf16);
}

}  // namespace dtrain::kernels
