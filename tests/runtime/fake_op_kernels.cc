#include "tests/runtime/fake_op_kernels.h"

#include "base/check.h"

namespace dtrain::testing {
namespace {

// A kernel of the CPU, which must have been launched by the time that its stream comes to it.
template <class Args, void (*kCpu)(const Args&, ParallelFor)>
absl::Status Queued(const Args& args, CudaStream stream) {
  return QueueFakeKernel(stream, [args] { kCpu(args, SerialFor); });
}

// As a GPU's kernel does, it finds its random numbers in device memory when it runs.
template <class T>
absl::Status Dropout(const kernels::DropoutArgs<T>& args, const kernels::PhiloxStream* random,
                     CudaStream stream) {
  return QueueFakeKernel(stream, [args, random] {
    kernels::DropoutArgs<T> now = args;
    now.stream = *random;
    kernels::DropoutCpu(now, SerialFor);
  });
}

absl::Status Totals(int64_t tokens, const float* losses, const int64_t* targets,
                    int64_t ignore_index, kernels::CrossEntropyTotals* totals, CudaStream stream) {
  return QueueFakeKernel(stream, [=] {
    *totals = kernels::CrossEntropyTotalsCpu(tokens, losses, targets, ignore_index);
  });
}

absl::StatusOr<size_t> EmbeddingBytes(int64_t tokens, int64_t vocab) {
  return static_cast<size_t>(tokens + vocab + 2) * sizeof(int64_t);
}

template <class T>
absl::Status EmbeddingBackward(const kernels::EmbeddingBackwardArgs<T>& args, void* workspace,
                               size_t bytes, CudaStream stream) {
  DT_CHECK_GE(bytes, *EmbeddingBytes(args.tokens, args.vocab));
  return QueueFakeKernel(stream, [=] {
    kernels::EmbeddingBackwardArgs<T> now = args;
    now.order = static_cast<int64_t*>(workspace);
    now.starts = now.order + args.tokens;
    kernels::EmbeddingBackwardCpu(now, SerialFor);
  });
}

absl::Status Amax(int64_t n, kernels::ConstFlat x, float* amax, CudaStream stream) {
  return QueueFakeKernel(stream, [=] { *amax = kernels::AmaxCpu(n, x, SerialFor); });
}

absl::Status CastToFp8(const kernels::CastToFp8Args& args, const float* scale, CudaStream stream) {
  return QueueFakeKernel(stream, [=] { kernels::CastToFp8Cpu(args, *scale, SerialFor); });
}

}  // namespace

void AddFakeOperationKernels(kernels::CudaKernelTable& table) {
  using namespace kernels;  // NOLINT: the table names every kernel.
  table.rmsnorm_forward = Queued<RmsNormForwardArgs<float>, RmsNormForwardCpu>;
  table.rmsnorm_forward_bf16 = Queued<RmsNormForwardArgs<BFloat16>, RmsNormForwardCpu>;
  table.rmsnorm_backward = Queued<RmsNormBackwardArgs<float>, RmsNormBackwardCpu>;
  table.rmsnorm_backward_bf16 = Queued<RmsNormBackwardArgs<BFloat16>, RmsNormBackwardCpu>;
  table.layernorm_forward = Queued<LayerNormForwardArgs<float>, LayerNormForwardCpu>;
  table.layernorm_forward_bf16 = Queued<LayerNormForwardArgs<BFloat16>, LayerNormForwardCpu>;
  table.layernorm_backward = Queued<LayerNormBackwardArgs<float>, LayerNormBackwardCpu>;
  table.layernorm_backward_bf16 = Queued<LayerNormBackwardArgs<BFloat16>, LayerNormBackwardCpu>;
  table.activation_forward = Queued<ActivationForwardArgs<float>, ActivationForwardCpu>;
  table.activation_forward_bf16 = Queued<ActivationForwardArgs<BFloat16>, ActivationForwardCpu>;
  table.activation_backward = Queued<ActivationBackwardArgs<float>, ActivationBackwardCpu>;
  table.activation_backward_bf16 = Queued<ActivationBackwardArgs<BFloat16>, ActivationBackwardCpu>;
  table.gated_forward = Queued<GatedForwardArgs<float>, GatedForwardCpu>;
  table.gated_forward_bf16 = Queued<GatedForwardArgs<BFloat16>, GatedForwardCpu>;
  table.gated_backward = Queued<GatedBackwardArgs<float>, GatedBackwardCpu>;
  table.gated_backward_bf16 = Queued<GatedBackwardArgs<BFloat16>, GatedBackwardCpu>;
  table.rope = Queued<RopeArgs<float>, RopeCpu>;
  table.rope_bf16 = Queued<RopeArgs<BFloat16>, RopeCpu>;
  table.cross_entropy_forward = Queued<CrossEntropyArgs<float>, CrossEntropyForwardCpu>;
  table.cross_entropy_forward_bf16 = Queued<CrossEntropyArgs<BFloat16>, CrossEntropyForwardCpu>;
  table.cross_entropy_totals = Totals;
  table.amax = Amax;
  table.cast_to_fp8 = CastToFp8;
  table.quantize_int8 = Queued<QuantizeInt8Args, QuantizeInt8Cpu>;
  table.dequantize_int8 = Queued<DequantizeInt8Args, DequantizeInt8Cpu>;
  table.dropout_stream = Dropout<float>;
  table.dropout_stream_bf16 = Dropout<BFloat16>;
  table.embedding_workspace_bytes = EmbeddingBytes;
  table.embedding_backward = EmbeddingBackward<float>;
  table.embedding_backward_bf16 = EmbeddingBackward<BFloat16>;
}

}  // namespace dtrain::testing
