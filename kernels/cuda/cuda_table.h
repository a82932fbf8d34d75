// The CUDA kernels as a table of function pointers, so that a program reaches them through the CUDA
// plugin (opened on demand) and links no CUDA library itself.
//
// A null table means that no plugin is open. Entries are the functions of the op headers; see there
// for shapes and errors. Where a header promises the bits of the CPU, it does not promise those of
// a NaN that arithmetic gives: a GPU's is 0x7fffffff, whatever the NaN that it came from. One that
// is rounded to 16 bits is 0x7fff there, and the code of one in FP8 is 0x7f.
#pragma once

#include "kernels/cuda/device_image.h"
#include "kernels/flat.h"
#include "kernels/layers/activation.h"
#include "kernels/layers/cross_entropy.h"
#include "kernels/layers/dropout_stream.h"
#include "kernels/layers/embedding.h"
#include "kernels/layers/layernorm.h"
#include "kernels/layers/rmsnorm.h"
#include "kernels/layers/rope.h"
#include "kernels/matmul/matmul.h"
#include "kernels/optimizer/adagrad.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/adamw_stochastic.h"
#include "kernels/optimizer/grad_norm.h"
#include "kernels/optimizer/lamb.h"
#include "kernels/optimizer/lion.h"
#include "kernels/optimizer/muon.h"
#include "kernels/optimizer/sgd.h"
#include "kernels/optimizer/step_verdict.h"
#include "kernels/quantize/fp8.h"
#include "kernels/quantize/int8_blocks.h"

namespace dtrain::kernels {

struct CudaKernelTable {
  decltype(&CheckDeviceImageCuda) check_device_image;

  decltype(&AdamWCuda) adamw;
  decltype(&AdamWCudaBf16State) adamw_bf16_state;
  decltype(&AdamWStochasticCuda) adamw_stochastic;
  decltype(&SgdCuda) sgd;
  decltype(&LionCuda) lion;
  decltype(&AdagradCuda) adagrad;
  decltype(&LambMomentsCuda) lamb_moments;
  decltype(&LambTrustCuda) lamb_trust;
  decltype(&LambApplyCuda) lamb_apply;
  decltype(&MuonDirectionCuda) muon_direction;
  decltype(&MuonApplyCuda) muon_apply;

  absl::Status (*block_square_sums)(const float*, int64_t, int64_t, double*, CudaStream);
  decltype(&TreeSumCuda) tree_sum;
  decltype(&StepVerdictCuda) step_verdict;

  decltype(&CopyCuda) copy;  // Converts between element types.
  decltype(&ScaleCuda) scale;
  decltype(&AccumulateCuda) accumulate;
  decltype(&RoundToBf16Cuda) round_to_bf16;
  decltype(&FillCuda) fill;

  absl::Status (*rmsnorm_forward)(const RmsNormForwardArgs<float>&, CudaStream);
  absl::Status (*rmsnorm_forward_bf16)(const RmsNormForwardArgs<BFloat16>&, CudaStream);
  absl::Status (*rmsnorm_backward)(const RmsNormBackwardArgs<float>&, CudaStream);
  absl::Status (*rmsnorm_backward_bf16)(const RmsNormBackwardArgs<BFloat16>&, CudaStream);

  absl::Status (*layernorm_forward)(const LayerNormForwardArgs<float>&, CudaStream);
  absl::Status (*layernorm_forward_bf16)(const LayerNormForwardArgs<BFloat16>&, CudaStream);
  absl::Status (*layernorm_backward)(const LayerNormBackwardArgs<float>&, CudaStream);
  absl::Status (*layernorm_backward_bf16)(const LayerNormBackwardArgs<BFloat16>&, CudaStream);

  absl::Status (*activation_forward)(const ActivationForwardArgs<float>&, CudaStream);
  absl::Status (*activation_forward_bf16)(const ActivationForwardArgs<BFloat16>&, CudaStream);
  absl::Status (*activation_backward)(const ActivationBackwardArgs<float>&, CudaStream);
  absl::Status (*activation_backward_bf16)(const ActivationBackwardArgs<BFloat16>&, CudaStream);
  absl::Status (*gated_forward)(const GatedForwardArgs<float>&, CudaStream);
  absl::Status (*gated_forward_bf16)(const GatedForwardArgs<BFloat16>&, CudaStream);
  absl::Status (*gated_backward)(const GatedBackwardArgs<float>&, CudaStream);
  absl::Status (*gated_backward_bf16)(const GatedBackwardArgs<BFloat16>&, CudaStream);

  absl::Status (*rope)(const RopeArgs<float>&, CudaStream);
  absl::Status (*rope_bf16)(const RopeArgs<BFloat16>&, CudaStream);

  absl::Status (*cross_entropy_forward)(const CrossEntropyArgs<float>&, CudaStream);
  absl::Status (*cross_entropy_forward_bf16)(const CrossEntropyArgs<BFloat16>&, CudaStream);
  decltype(&CrossEntropyTotalsCuda) cross_entropy_totals;

  decltype(&QuantizeInt8Cuda) quantize_int8;
  decltype(&DequantizeInt8Cuda) dequantize_int8;
  decltype(&CastToFp8Cuda) cast_to_fp8;
  decltype(&TransposeToFp8Cuda) transpose_to_fp8;
  decltype(&Fp8ScaleCuda) fp8_scale;
  decltype(&RowsToFp8Cuda) rows_to_fp8;

  decltype(&CreateMatmul) create_matmul;

  absl::Status (*dropout_stream)(const DropoutArgs<float>&, const PhiloxStream*, CudaStream);
  absl::Status (*dropout_stream_bf16)(const DropoutArgs<BFloat16>&, const PhiloxStream*,
                                      CudaStream);

  decltype(&EmbeddingWorkspaceBytesCuda) embedding_workspace_bytes;
  absl::Status (*embedding_backward)(const EmbeddingBackwardArgs<float>&, void*, size_t,
                                     CudaStream);
  absl::Status (*embedding_backward_bf16)(const EmbeddingBackwardArgs<BFloat16>&, void*, size_t,
                                          CudaStream);
};

// The table behind the opaque pointer that the plugin gives (comm::Plugin::kernel_table()).
inline const CudaKernelTable* AsCudaKernelTable(const void* table) {
  return static_cast<const CudaKernelTable*>(table);
}

}  // namespace dtrain::kernels
