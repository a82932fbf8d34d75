#include "kernels/layers/norm_cpu.h"
#include "kernels/layers/rmsnorm.h"

namespace dtrain::kernels {

void RmsNormForwardCpu(const RmsNormForwardArgs<float>& args, ParallelFor parallel_for) {
  NormForward(args, parallel_for, ActiveTable().rms_norm.forward_f32);
}

void RmsNormForwardCpu(const RmsNormForwardArgs<BFloat16>& args, ParallelFor parallel_for) {
  NormForward(args, parallel_for, ActiveTable().rms_norm.forward_bf16);
}

void RmsNormBackwardCpu(const RmsNormBackwardArgs<float>& args, ParallelFor parallel_for) {
  float* const results[] = {args.dweight};
  NormBackward(args, results, parallel_for, ActiveTable().rms_norm.backward_f32);
}

void RmsNormBackwardCpu(const RmsNormBackwardArgs<BFloat16>& args, ParallelFor parallel_for) {
  BFloat16* const results[] = {args.dweight};
  NormBackward(args, results, parallel_for, ActiveTable().rms_norm.backward_bf16);
}

}  // namespace dtrain::kernels
