#include "gpt/document_attention.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <torch/csrc/autograd/custom_function.h>

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The kernel's loads are of 16 bytes.
constexpr int64_t kHeadDimMultiple = 8;
constexpr int64_t kHeadDimMax = 256;
// Backward adds up q's gradient in fp32 rows, of which each document has 128 beyond its tokens. At
// this mean length they take nine times the memory that q's gradient would in fp32.
constexpr int64_t kMeanLengthMin = 16;

// dtrain's `deterministic` makes LibTorch warn, and not throw, where an operation has no
// deterministic form. Flash attention has one, which it takes only where LibTorch would throw.
class StrictlyDeterministic {
 public:
  StrictlyDeterministic()
      : changes_(at::globalContext().deterministicAlgorithms() &&
                 at::globalContext().deterministicAlgorithmsWarnOnly()) {
    Set(/*warn_only=*/false);
  }
  ~StrictlyDeterministic() { Set(/*warn_only=*/true); }
  StrictlyDeterministic(const StrictlyDeterministic&) = delete;
  StrictlyDeterministic& operator=(const StrictlyDeterministic&) = delete;

 private:
  void Set(bool warn_only) const {
    if (changes_) {
      at::globalContext().setDeterministicAlgorithms(true, warn_only);
    }
  }
  const bool changes_;
};

class AttendAtOnceFunction : public torch::autograd::Function<AttendAtOnceFunction> {
 public:
  // q [tokens, heads, head_dim], k and v [tokens, kv_heads, head_dim]. No document is longer than
  // `length`, a number of the shape alone: launches of a CUDA graph repeat it.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const at::Tensor& offsets, int64_t length) {
    const auto [y, log_sums, random_state, unused, mask] =
        at::_flash_attention_forward(q, k, v, offsets, offsets, length, length, /*dropout_p=*/0.0,
                                     /*is_causal=*/true, /*return_debug_mask=*/false);
    context->save_for_backward({q, k, v, y, log_sums, offsets, random_state, unused});
    context->saved_data["length"] = length;
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "attention of documents has no second derivative");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &y = saved[3],
                     &log_sums = saved[4], &offsets = saved[5];
    const int64_t length = context->saved_data["length"].toInt();
    const StrictlyDeterministic scope;
    auto [dq, dk, dv] = at::_flash_attention_backward(
        gradients[0], q, k, v, y, log_sums, offsets, offsets, length, length, /*dropout_p=*/0.0,
        /*is_causal=*/true, /*rng_state=*/saved[6], /*unused=*/saved[7]);
    return {dq, dk, dv, {}, {}};
  }
};

}  // namespace

at::Tensor DocumentOffsets(const at::Tensor& positions, int64_t documents) {
  const at::Tensor begins = positions.eq(0);
  begins.select(1, 0).fill_(true);
  // How many documents have begun up to each token: document i begins at the first that has i + 1.
  const at::Tensor begun = begins.flatten().cumsum(0);
  return at::searchsorted(begun, at::arange(1, documents + 2, begun.options()),
                          /*out_int32=*/true);
}

bool FitsOneCall(const PackedHeads& heads) {
  const bool two_bytes = heads.type == at::kBFloat16 || heads.type == at::kHalf;
  return heads.on_gpu && two_bytes && heads.dropout == 0 &&
         heads.head_dim % kHeadDimMultiple == 0 && heads.head_dim <= kHeadDimMax &&
         heads.tokens >= heads.documents * kMeanLengthMin;
}

at::Tensor AttendAtOnce(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const at::Tensor& offsets) {
  return AttendAtOnceFunction::apply(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), offsets,
                                     q.size(1))
      .view(q.sizes());
}
