#include "ATen/Functions.h"
#include "dtrain/ops.h"
#include "runtime/ops/fused.h"
#include "runtime/ops/token_losses.h"
#include "torch/csrc/autograd/custom_function.h"

namespace dtrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class CrossEntropyFunction : public torch::autograd::Function<CrossEntropyFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& targets, const CrossEntropyOptions& options,
                            bool with_gradient) {
    RECORD_FUNCTION("dtrain::cross_entropy", Inputs(logits, targets));
    // The logits are the caller's; of the copy becomes the gradient.
    at::Tensor rows = logits.reshape({-1, logits.size(-1)}).contiguous();
    if (with_gradient && rows.is_alias_of(logits)) {
      rows = rows.clone();
    }
    LossSum sum;
    AddTokenLosses(rows, targets, options, with_gradient, sum);
    if (with_gradient) {
      context->save_for_backward({rows.view(logits.sizes())});
    }
    return sum.Total(logits.scalar_type(), logits.device());
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "dtrain::ops::CrossEntropy has no second derivative");
    const at::Tensor dlogits = context->get_saved_variables()[0];
    RECORD_FUNCTION("dtrain::cross_entropy_backward", Inputs(dlogits));
    return {TimesUpstream(dlogits, gradients[0]), {}, {}, {}};
  }
};

}  // namespace

Loss CrossEntropy(const at::Tensor& logits, const at::Tensor& targets,
                  const CrossEntropyOptions& options) {
  TORCH_CHECK_VALUE(logits.dim() > 0 && logits.size(-1) > 0 && logits.is_floating_point(),
                    "cross-entropy: logits are ", logits.scalar_type(), " of shape ",
                    logits.sizes(), "; they must be floating point of shape [..., vocab]");
  const at::Tensor flat =
      CheckedTargets(targets, logits.sizes().slice(0, static_cast<size_t>(logits.dim() - 1)),
                     logits.size(-1), options);
  const bool with_gradient = at::GradMode::is_enabled() && logits.requires_grad();
  return {CrossEntropyFunction::apply(logits, flat, options, with_gradient),
          CountTargets(flat, options)};
}

}  // namespace dtrain::ops
