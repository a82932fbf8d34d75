// A linear layer whose weight is stored as GPT-2's files have it.
#include <vector>

#include "ATen/Functions.h"
#include "dtrain/ops.h"
#include "runtime/ops/fused.h"
#include "runtime/ops/linear_products.h"
#include "torch/csrc/autograd/custom_function.h"

namespace dtrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class TransposedLinearFunction : public torch::autograd::Function<TransposedLinearFunction> {
 public:
  // rows [m, in], weight [in, out]; biases: none or one [out].
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            const at::Tensor& weight, at::TensorList biases) {
    RECORD_FUNCTION("dtrain::transposed_linear", AllOf(rows, {weight}, biases));
    context->save_for_backward({weight.requires_grad() ? rows : at::Tensor(), weight});
    context->saved_data["biases"] = static_cast<int64_t>(biases.size());
    if (biases.empty()) {
      return Multiply(rows, weight);
    }
    at::Tensor y = at::empty({rows.size(0), weight.size(1)}, rows.options());
    Multiply(y, rows, weight, biases[0]);
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "dtrain::ops::TransposedLinear has no second derivative");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& rows = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor dy = gradients[0].contiguous();
    RECORD_FUNCTION("dtrain::transposed_linear_backward", Inputs(dy, rows, weight));
    variable_list out(2);
    if (context->needs_input_grad(0)) {
      out[0] = Multiply(dy, weight.t());
    }
    if (context->needs_input_grad(1)) {
      out[1] = GradientOfTransposed(weight, rows, dy);
    }
    if (context->saved_data["biases"].toInt() > 0) {
      out.push_back(context->needs_input_grad(2) ? dy.sum(0) : at::Tensor());
    }
    return out;
  }
};

}  // namespace

at::Tensor TransposedLinear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  TORCH_CHECK_VALUE(x.dim() > 0 && weight.dim() == 2 && x.size(-1) == weight.size(0),
                    "TransposedLinear takes x [..., in] and weight [in, out], not ", x.sizes(),
                    " and ", weight.sizes());
  TORCH_CHECK_VALUE(!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(1)),
                    "TransposedLinear takes a bias [out] for a weight [in, out], not ",
                    bias.defined() ? bias.sizes() : at::IntArrayRef(), " for ", weight.sizes());
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = weight.size(1);
  const variable_list biases = bias.defined() ? variable_list{bias} : variable_list();
  return TransposedLinearFunction::apply(x.reshape({-1, x.size(-1)}), weight,
                                         at::TensorList(biases))
      .view(sizes);
}

}  // namespace dtrain::ops
