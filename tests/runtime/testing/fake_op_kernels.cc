#include "tests/runtime/testing/fake_op_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>

#include "base/check.h"
#include "base/numeric/float16.h"
#include "c10/util/Float8_e4m3fn.h"
#include "c10/util/Float8_e5m2.h"

namespace dtrain::testing {
namespace {

// A kernel of the CPU, which must have been launched by the time that its stream comes to it.
template <class Args, void (*kCpu)(const Args&, ParallelFor)>
absl::Status Queued(const Args& args, CudaStream stream) {
  return QueueFakeKernel(stream, [args] { kCpu(args, SerialFor); });
}

// Like a GPU's kernel, it finds its random numbers in device memory when it runs.
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

// Stands for the GPU's kernel as one block, which finds in `progress` what the launch before it
// left.
absl::Status Fp8Scale(const kernels::Fp8ScaleArgs& args, CudaStream stream) {
  DT_CHECK(args.progress != nullptr);
  return QueueFakeKernel(stream, [=] {
    kernels::Fp8ScaleProgress& progress = *args.progress;
    float amax = kernels::AmaxCpu(args.n, args.src, SerialFor);
    progress.most = std::max(progress.most, std::bit_cast<uint32_t>(amax));
    if (progress.blocks++ != 0) {
      return;  // Not the last block, so somebody else would make the scale.
    }
    amax = std::bit_cast<float>(progress.most);
    *args.scale = kernels::Fp8Scale(amax, args.format);
    *args.inverse = kernels::Fp8Inverse(amax, args.format);
    progress = {};
  });
}

absl::Status CastToFp8(const kernels::CastToFp8Args& args, const float* scale, CudaStream stream) {
  return QueueFakeKernel(stream, [=] { kernels::CastToFp8Cpu(args, *scale, SerialFor); });
}

FakeMatmulLaunches matmuls;

// A product as cublasLt would make it of the problem: sums in fp32, one rounding.
class FakeMatmul final : public kernels::Matmul {
 public:
  explicit FakeMatmul(const kernels::MatmulProblem& problem) : p_(problem) {}
  size_t workspace_bytes() const override { return 64; }
  absl::Status Launch(const kernels::MatmulBuffers& buffers, void* workspace,
                      CudaStream stream) const override {
    DT_CHECK(workspace != nullptr);
    ++matmuls.all;
    matmuls.adding += p_.accumulate ? 1 : 0;
    matmuls.into_fp32 += p_.out == kernels::MatmulType::kFloat32 ? 1 : 0;
    matmuls.keeping_gelu_input += p_.keep_gelu_input ? 1 : 0;
    return QueueFakeKernel(stream, [p = p_, buffers] { Multiply(p, buffers); });
  }

 private:
  static void Multiply(const kernels::MatmulProblem& p, const kernels::MatmulBuffers& buffers) {
    const float scale = buffers.a_scale == nullptr ? 1 : *buffers.a_scale * *buffers.b_scale;
    for (int64_t i = 0; i < p.m; ++i) {
      for (int64_t j = 0; j < p.n; ++j) {
        float sum = 0;
        for (int64_t k = 0; k < p.k; ++k) {
          sum += At(p.a, buffers.a, p.transpose_a ? k * p.a_stride + i : i * p.a_stride + k) *
                 At(p.b, buffers.b, p.transpose_b ? j * p.b_stride + k : k * p.b_stride + j);
        }
        Write(p, buffers, j, sum * scale, i * p.out_stride + j);
      }
    }
  }
  static float At(kernels::MatmulType type, const void* matrix, int64_t i) {
    switch (type) {
      case kernels::MatmulType::kE4m3:
        return static_cast<const c10::Float8_e4m3fn*>(matrix)[i];
      case kernels::MatmulType::kE5m2:
        return static_cast<const c10::Float8_e5m2*>(matrix)[i];
      default:
        return ToFloat(static_cast<const BFloat16*>(matrix)[i]);
    }
  }
  static float InnerOfGelu(float x) { return 0.79788456F * (x + 0.044715F * x * x * x); }
  static void Write(const kernels::MatmulProblem& p, const kernels::MatmulBuffers& buffers,
                    int64_t column, float sum, int64_t at) {
    using kernels::MatmulEpilogue;
    if (p.epilogue == MatmulEpilogue::kBias || p.epilogue == MatmulEpilogue::kGeluBias) {
      sum += ToFloat(static_cast<const BFloat16*>(buffers.bias)[column]);
    }
    if (p.epilogue == MatmulEpilogue::kGelu || p.epilogue == MatmulEpilogue::kGeluBias) {
      if (p.keep_gelu_input) {
        static_cast<BFloat16*>(buffers.gelu_input)[at] = ToBFloat16(sum);
      }
      sum = 0.5F * sum * (1 + std::tanh(InnerOfGelu(sum)));
    }
    if (p.epilogue == MatmulEpilogue::kGeluBackward) {
      const float x = ToFloat(static_cast<const BFloat16*>(buffers.gelu_input)[at]);
      const float tanh = std::tanh(InnerOfGelu(x));
      const float slope_of_inner = 0.79788456F * (1 + 3 * 0.044715F * x * x);
      sum *= 0.5F * (1 + tanh + x * (1 - tanh * tanh) * slope_of_inner);
    }
    if (p.out == kernels::MatmulType::kBFloat16) {
      static_cast<BFloat16*>(buffers.out)[at] = ToBFloat16(sum);
      return;
    }
    float& out = static_cast<float*>(buffers.out)[at];
    out = p.accumulate ? out + sum : sum;
  }

  const kernels::MatmulProblem p_;
};

// Makes the products that the runtime asks for: bf16 or FP8 factors, with strides.
absl::StatusOr<std::unique_ptr<kernels::Matmul>> CreateFakeMatmul(
    const kernels::MatmulProblem& problem, size_t /*workspace_bytes_max*/) {
  if (const auto plan = kernels::PlanMatmul(problem); !plan.ok()) {
    return plan.status();
  }
  DT_CHECK(problem.a != kernels::MatmulType::kFloat32 && problem.a_stride > 0 &&
           problem.b_stride > 0 && problem.out_stride > 0);
  DT_CHECK(problem.out_stride == problem.n || problem.epilogue < kernels::MatmulEpilogue::kGelu);
  return std::make_unique<FakeMatmul>(problem);
}

absl::Status TransposeToFp8(const kernels::TransposeToFp8Args& args, const float* scale,
                            CudaStream stream) {
  return QueueFakeKernel(stream, [=] { kernels::TransposeToFp8Cpu(args, *scale, SerialFor); });
}

}  // namespace

FakeMatmulLaunches FakeMatmuls() { return matmuls; }

void AddFakeOperationKernels(kernels::CudaKernelTable& table) {
  using namespace kernels;  // NOLINT: the table names every kernel.
  table.check_device_image = [] { return absl::OkStatus(); };
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
  table.create_matmul = CreateFakeMatmul;
  table.fp8_scale = testing::Fp8Scale;
  table.cast_to_fp8 = CastToFp8;
  table.quantize_int8 = Queued<QuantizeInt8Args, QuantizeInt8Cpu>;
  table.dequantize_int8 = Queued<DequantizeInt8Args, DequantizeInt8Cpu>;
  table.transpose_to_fp8 = TransposeToFp8;
  table.rows_to_fp8 = Queued<RowsToFp8Args, RowsToFp8Cpu>;
  table.dropout_stream = Dropout<float>;
  table.dropout_stream_bf16 = Dropout<BFloat16>;
  table.embedding_workspace_bytes = EmbeddingBytes;
  table.embedding_backward = EmbeddingBackward<float>;
  table.embedding_backward_bf16 = EmbeddingBackward<BFloat16>;
}

}  // namespace dtrain::testing
