#include "gpt/causal_attention.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <vector>

#include "gpt/document_attention.h"

namespace {

struct CudaKernels {
  bool flash = false;
  bool cudnn = false;
  bool math = false;
};

// Limits for a scope which of CUDA's kernels scaled_dot_product_attention may take. The switches
// are the whole process's, so only one thread may drive a model.
class CudaBackendScope {
 public:
  explicit CudaBackendScope(CudaKernels only)
      : flash_(context().userEnabledFlashSDP()),
        efficient_(context().userEnabledMemEfficientSDP()),
        math_(context().userEnabledMathSDP()),
        cudnn_(context().userEnabledCuDNNSDP()) {
    Set(only.flash, false, only.math, only.cudnn);
  }
  ~CudaBackendScope() { Set(flash_, efficient_, math_, cudnn_); }
  CudaBackendScope(const CudaBackendScope&) = delete;
  CudaBackendScope& operator=(const CudaBackendScope&) = delete;

 private:
  static at::Context& context() { return at::globalContext(); }
  static void Set(bool flash, bool efficient, bool math, bool cudnn) {
    context().setSDPUseFlash(flash);
    context().setSDPUseMemEfficient(efficient);
    context().setSDPUseMath(math);
    context().setSDPUseCuDNN(cudnn);
  }

  const bool flash_;
  const bool efficient_;
  const bool math_;
  const bool cudnn_;
};

at::Tensor LetLibTorchChoose(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             double dropout) {
  return at::scaled_dot_product_attention(q, k, v, /*attn_mask=*/{}, dropout, /*is_causal=*/true,
                                          /*scale=*/std::nullopt,
                                          /*enable_gqa=*/q.size(1) != k.size(1));
}

// Attention with the scores written out. It works on any device and type, and tests compare the
// other kernels with it.
at::Tensor WriteScoresOut(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          double dropout) {
  return std::get<0>(at::_scaled_dot_product_attention_math(
      q, k, v, /*attn_mask=*/{}, dropout, /*is_causal=*/true, /*dropout_mask=*/{},
      /*scale=*/std::nullopt, /*enable_gqa=*/q.size(1) != k.size(1)));
}

// q [batch, heads, sequence, head_dim]: one document a row.
at::Tensor OneDocumentARow(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const AttentionCall& call) {
  if (call.backend == AttentionBackend::kAuto) {
    return LetLibTorchChoose(q, k, v, call.dropout);
  }
  if (call.backend == AttentionBackend::kMath) {
    return WriteScoresOut(q, k, v, call.dropout);
  }
  if (q.is_cuda()) {
    const CudaBackendScope scope({.flash = call.backend == AttentionBackend::kFlash,
                                  .cudnn = call.backend == AttentionBackend::kCudnn});
    return LetLibTorchChoose(q, k, v, call.dropout);
  }
  TORCH_CHECK(call.backend == AttentionBackend::kFlash,
              "model.attention_backend cudnn needs a CUDA device, the tensors are on ",
              q.device().str(), "; allowed there: auto, flash, math");
  TORCH_CHECK(call.dropout == 0, "model.attention_backend flash on the CPU has no dropout, and ",
              "this model drops ", call.dropout,
              " of its attention weights in training; set the "
              "model's attention dropout to 0, or attention_backend to math");
  return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, /*dropout_p=*/0.0,
                                                                     /*is_causal=*/true));
}

// Asks before, so that nothing has to be caught: the process's switches, the tensors, and LibTorch
// for what its build and the GPU can do.
bool DocumentsAreOneCall(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const AttentionCall& call) {
  const bool may_be_flash =
      call.backend == AttentionBackend::kFlash ||
      (call.backend == AttentionBackend::kAuto && at::globalContext().userEnabledFlashSDP());
  if (!may_be_flash || !call.document_offsets.defined() ||
      !FitsOneCall({.on_gpu = q.is_cuda(),
                    .type = q.scalar_type(),
                    .head_dim = q.size(3),
                    .dropout = call.dropout,
                    .tokens = q.size(0) * q.size(1),
                    .documents = static_cast<int64_t>(call.document_lengths.size())})) {
    return false;
  }
  // Where flash attention cannot, the choice is to write the scores out, and no error.
  const CudaBackendScope scope({.flash = true, .math = true});
  const int64_t choice = at::_fused_sdp_choice(
      q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), /*attn_mask=*/{}, /*dropout_p=*/0.0,
      /*is_causal=*/true, /*scale=*/std::nullopt, /*enable_gqa=*/q.size(2) != k.size(2));
  return choice == static_cast<int64_t>(at::SDPBackend::flash_attention);
}

// One call for each document, on any device: no scores between documents are computed, and each
// document gets the same result as by itself. q [batch, sequence, heads, head_dim] -> [1, batch *
// sequence, heads, head_dim]. split's backward is one concatenation.
at::Tensor AttendOneByOne(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const AttentionCall& call) {
  const at::IntArrayRef lengths(call.document_lengths.data(), call.document_lengths.size());
  const auto cut = [&](const at::Tensor& x) {  // -> [1, heads, length, head_dim] each.
    return x.reshape({1, x.size(0) * x.size(1), x.size(2), x.size(3)})
        .transpose(1, 2)
        .split_with_sizes(lengths, /*dim=*/2);
  };
  const std::vector<at::Tensor> queries = cut(q);
  const std::vector<at::Tensor> keys = cut(k);
  const std::vector<at::Tensor> values = cut(v);
  std::vector<at::Tensor> attended;
  for (size_t i = 0; i < queries.size(); ++i) {
    attended.push_back(OneDocumentARow(queries[i], keys[i], values[i], call).transpose(1, 2));
  }
  return at::cat(attended, 1);
}

}  // namespace

const std::map<std::string, AttentionBackend>& AttentionBackends() {
  static const auto* const backends =
      new std::map<std::string, AttentionBackend>{{"auto", AttentionBackend::kAuto},
                                                  {"flash", AttentionBackend::kFlash},
                                                  {"cudnn", AttentionBackend::kCudnn},
                                                  {"math", AttentionBackend::kMath}};
  return *backends;
}

at::Tensor CausalAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const AttentionCall& call) {
  const int64_t batch = q.size(0);
  const int64_t sequence = q.size(1);
  const int64_t width = q.size(2) * q.size(3);
  if (call.document_lengths.empty()) {
    return OneDocumentARow(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), call)
        .transpose(1, 2)
        .reshape({batch, sequence, width});
  }
  const at::Tensor attended = DocumentsAreOneCall(q, k, v, call)
                                  ? AttendAtOnce(q, k, v, call.document_offsets)
                                  : AttendOneByOne(q, k, v, call);
  return attended.reshape({batch, sequence, width});
}

at::Tensor AttentionOfLast(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values) {
  const int64_t batch = q.size(0);
  const int64_t heads = q.size(2);
  const int64_t head_dim = q.size(3);
  // The query heads that share a key head stand where tokens would, so that no key is repeated.
  const at::Tensor grouped = q.reshape({batch, keys.size(1), heads / keys.size(1), head_dim});
  return at::scaled_dot_product_attention(grouped, keys, values)
      .reshape({batch, 1, heads * head_dim});
}
