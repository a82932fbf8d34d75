#include "kernels/cuda_table.h"

// Compiled into the CUDA plugin, which finds it by this name.
extern "C" const void* dtrain_cuda_kernel_table() {
  using namespace dtrain::kernels;  // NOLINT: the table names every kernel.
  static const CudaKernelTable table = {
      .adamw_set_clip = AdamWSetClipCuda,
      .adamw = AdamWCuda,
      .adamw_bf16_grad = AdamWCudaBf16Grad,
      .adamw_bf16_state = AdamWCudaBf16State,
      .sgd = SgdCuda,
      .lion = LionCuda,
      .adagrad = AdagradCuda,
      .block_square_sums = BlockSquareSumsCuda,
      .block_square_sums_bf16 = BlockSquareSumsCuda,
      .tree_sum = TreeSumCuda,
      .copy = CopyCuda,
      .scale = ScaleCuda,
      .accumulate = AccumulateCuda,
      .fill = FillCuda,
      .rmsnorm_forward = RmsNormForwardCuda,
      .rmsnorm_forward_bf16 = RmsNormForwardCuda,
      .rmsnorm_backward = RmsNormBackwardCuda,
      .rmsnorm_backward_bf16 = RmsNormBackwardCuda,
      .swiglu_forward = SwiGluForwardCuda,
      .swiglu_forward_bf16 = SwiGluForwardCuda,
      .swiglu_backward = SwiGluBackwardCuda,
      .swiglu_backward_bf16 = SwiGluBackwardCuda,
      .cross_entropy_forward = CrossEntropyForwardCuda,
      .cross_entropy_forward_bf16 = CrossEntropyForwardCuda,
      .cross_entropy_backward = CrossEntropyBackwardCuda,
      .cross_entropy_backward_bf16 = CrossEntropyBackwardCuda,
      .cross_entropy_totals = CrossEntropyTotalsCuda,
  };
  return &table;
}
