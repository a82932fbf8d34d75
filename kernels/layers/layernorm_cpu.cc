#include "kernels/layers/layernorm.h"
#include "kernels/layers/norm_cpu.h"

namespace dtrain::kernels {

void LayerNormForwardCpu(const LayerNormForwardArgs<float>& args, ParallelFor parallel_for) {
  NormForward(args, parallel_for, ActiveTable().layer_norm.forward_f32);
}

void LayerNormForwardCpu(const LayerNormForwardArgs<BFloat16>& args, ParallelFor parallel_for) {
  NormForward(args, parallel_for, ActiveTable().layer_norm.forward_bf16);
}

void LayerNormBackwardCpu(const LayerNormBackwardArgs<float>& args, ParallelFor parallel_for) {
  float* const results[] = {args.dweight, args.dbias};
  NormBackward(args, results, parallel_for, ActiveTable().layer_norm.backward_f32);
}

void LayerNormBackwardCpu(const LayerNormBackwardArgs<BFloat16>& args, ParallelFor parallel_for) {
  BFloat16* const results[] = {args.dweight, args.dbias};
  NormBackward(args, results, parallel_for, ActiveTable().layer_norm.backward_bf16);
}

}  // namespace dtrain::kernels
