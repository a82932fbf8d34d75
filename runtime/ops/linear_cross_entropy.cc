// The fused classifier (as Hsu et al. 2024, arXiv 2410.10989, section 3.2): chunk by chunk, logits,
// their gradient in place, and from it the gradients of hidden and weight, so that no more than a
// chunk's logits ever exist.
#include <algorithm>

#include "ATen/Functions.h"
#include "dtrain/ops.h"
#include "runtime/ops/fused.h"
#include "runtime/ops/linear_products.h"
#include "runtime/ops/token_losses.h"
#include "runtime/plan/memory/classifier_plan.h"
#include "torch/csrc/autograd/custom_function.h"

namespace dtrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Wanted {
  bool hidden;
  bool weight;
};

// The gradients of the sum of losses; undefined where not wanted.
struct Gradients {
  at::Tensor hidden;  // [tokens, width], hidden's type.
  at::Tensor weight;  // [vocab, width], LossType.
};

// Adds a chunk's part to a gradient of the weight that is kept in fp32 (fp64 for fp64).
class WeightGradient {
 public:
  // gradient [vocab, width] += dlogits^T hidden.
  void Add(const at::Tensor& dlogits, const at::Tensor& hidden) {
    const at::Tensor transposed = dlogits.t();
    if (hidden.scalar_type() == LossType(hidden.scalar_type())) {
      if (sum_.defined()) {
        sum_.addmm_(transposed, hidden);
      } else {
        sum_ = at::mm(transposed, hidden);
      }
      return;
    }
    if (hidden.is_cuda()) {  // cuBLAS adds products of 2-byte factors to fp32 as they are.
      if (sum_.defined()) {
        at::addmm_out(sum_, sum_, transposed, hidden, at::kFloat);
      } else {
        sum_ = at::mm(transposed, hidden, at::kFloat);
      }
      return;
    }
    // The CPU has no such GEMM: each chunk's product is rounded once.
    part_ = part_.defined() ? at::mm_out(part_, transposed, hidden) : at::mm(transposed, hidden);
    if (sum_.defined()) {
      sum_.add_(part_);
    } else {
      sum_ = part_.to(LossType(hidden.scalar_type()));
    }
  }
  at::Tensor Take() { return std::move(sum_); }

 private:
  at::Tensor sum_;
  at::Tensor part_;
};

at::Tensor Forward(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                   const CrossEntropyOptions& options, int64_t chunk, Wanted wanted,
                   Gradients& gradients) {
  const int64_t tokens = hidden.size(0);
  const int64_t vocab = weight.size(0);
  at::Tensor buffer = at::empty({std::min(chunk, tokens), vocab}, hidden.options());
  if (wanted.hidden) {
    gradients.hidden = at::empty_like(hidden);
  }
  LossSum sum;
  WeightGradient weight_gradient;
  const at::Tensor transposed = weight.t();
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    const int64_t count = std::min(chunk, tokens - begin);
    const at::Tensor rows = hidden.narrow(0, begin, count);
    at::Tensor logits = buffer.narrow(0, 0, count);
    at::mm_out(logits, rows, transposed);
    AddTokenLosses(logits, targets.narrow(0, begin, count), options, wanted.hidden || wanted.weight,
                   sum);
    if (wanted.hidden) {
      at::Tensor part = gradients.hidden.narrow(0, begin, count);
      at::mm_out(part, logits, weight);
    }
    if (wanted.weight) {
      weight_gradient.Add(logits, rows);
    }
  }
  if (wanted.weight) {
    gradients.weight = tokens > 0 ? weight_gradient.Take()
                                  : at::zeros_like(weight, LossType(weight.scalar_type()));
  }
  return sum.Total(hidden.scalar_type(), hidden.device());
}

// Whether the weight's gradient went where it belongs: `sum` times upstream, in fp32 as it is.
bool PutHomeTimes(const at::Tensor& weight, const at::Tensor& sum, const at::Tensor& upstream) {
  const GradientHome home = TakeWeightHome(weight, /*fp32_sums=*/true);
  if (!home.place.defined()) {
    return false;
  }
  at::Tensor place = home.place;
  const at::Tensor factor = upstream.to(at::kFloat);
  if (home.holds) {
    place.addcmul_(sum, factor);
  } else {
    at::mul_out(place, sum, factor);
  }
  return true;
}

class LinearCrossEntropyFunction : public torch::autograd::Function<LinearCrossEntropyFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& weight, const at::Tensor& targets,
                            const CrossEntropyOptions& options, int64_t chunk,
                            const Wanted& wanted) {
    RECORD_FUNCTION("dtrain::linear_cross_entropy", Inputs(hidden, weight, targets));
    Gradients gradients;
    at::Tensor sum = Forward(hidden, weight, targets, options, chunk, wanted, gradients);
    context->save_for_backward({gradients.hidden, gradients.weight, weight});
    context->saved_data["dtype"] = static_cast<int64_t>(weight.scalar_type());
    return sum;
  }
  static variable_list backward(AutogradContext* context, const variable_list& upstream) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "dtrain::ops::LinearCrossEntropy has no second derivative");
    const variable_list saved = context->get_saved_variables();
    RECORD_FUNCTION("dtrain::linear_cross_entropy_backward", Inputs(saved[0], saved[1]));
    const auto dtype = static_cast<at::ScalarType>(context->saved_data["dtype"].toInt());
    at::Tensor dweight;
    if (saved[1].defined() && !PutHomeTimes(saved[2], saved[1], upstream[0])) {
      dweight = TimesUpstream(saved[1], upstream[0]).to(dtype);
    }
    return {TimesUpstream(saved[0], upstream[0]), dweight, {}, {}, {}, {}};
  }
};

}  // namespace

Loss LinearCrossEntropy(const at::Tensor& hidden, const at::Tensor& weight,
                        const at::Tensor& targets, const CrossEntropyOptions& options,
                        int64_t chunk_tokens) {
  TORCH_CHECK_VALUE(hidden.dim() > 0 && weight.dim() == 2 && weight.numel() > 0 &&
                        hidden.is_floating_point() && hidden.size(-1) == weight.size(1) &&
                        hidden.scalar_type() == weight.scalar_type(),
                    "linear cross-entropy: hidden is ", hidden.scalar_type(), ' ', hidden.sizes(),
                    ", weight ", weight.scalar_type(), ' ', weight.sizes(),
                    "; they must be [..., width] and [vocab, width] of one floating-point type");
  TORCH_CHECK_VALUE(chunk_tokens >= 0, "linear cross-entropy: chunk_tokens is ", chunk_tokens,
                    "; it must be at least 1, or 0 for a choice by the vocabulary");
  const at::Tensor flat =
      CheckedTargets(targets, hidden.sizes().slice(0, static_cast<size_t>(hidden.dim() - 1)),
                     weight.size(0), options);
  const Wanted wanted{at::GradMode::is_enabled() && hidden.requires_grad(),
                      at::GradMode::is_enabled() && weight.requires_grad()};
  const at::Tensor rows = hidden.reshape({-1, hidden.size(-1)}).contiguous();
  const int64_t chunk = plan::ClassifierChunkTokens(
      std::max<int64_t>(1, rows.size(0)), weight.size(0), rows.device().is_cpu(), chunk_tokens);
  return {
      LinearCrossEntropyFunction::apply(rows, weight.contiguous(), flat, options, chunk, wanted),
      CountTargets(flat, options)};
}

}  // namespace dtrain::ops
