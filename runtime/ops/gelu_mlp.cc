// The two linear layers of GPT-2's MLP and the GELU between them, which is then no pass over memory
// of its own on a GPU: it ends the first product, and its derivative one of backward's.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "ATen/Functions.h"
#include "dtrain/ops.h"
#include "runtime/ops/activation.h"
#include "runtime/ops/device_matmul.h"
#include "runtime/ops/fused.h"
#include "runtime/ops/linear_products.h"
#include "torch/csrc/autograd/custom_function.h"

namespace dtrain::ops {
namespace {

using kernels::Activation;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// gelu(rows up + bias). The input of GELU is written to `before`, where that is defined.
at::Tensor GeluOfProduct(const at::Tensor& before, const at::Tensor& rows, const at::Tensor& up,
                         const at::Tensor& bias) {
  at::Tensor inner = at::empty({rows.size(0), up.size(1)}, rows.options());
  if (!DeviceMatmul(inner, rows, up,
                    {.bias = bias, .gelu = MatmulGelu::kForward, .gelu_input = before})) {
    const at::Tensor& product = before.defined() ? before : inner;
    Multiply(product, rows, up, bias);
    ActivationForward(product, Activation::kGeluTanh, inner);
  }
  return inner;
}

// The gradient of `before` from dy of y = gelu(before) down.
at::Tensor GeluOfProductBackward(const at::Tensor& before, const at::Tensor& dy,
                                 const at::Tensor& down) {
  at::Tensor out = at::empty_like(before);
  if (!DeviceMatmul(out, dy, down.t(), {.gelu = MatmulGelu::kBackward, .gelu_input = before})) {
    Multiply(out, dy, down.t());
    ActivationBackward(before, out, Activation::kGeluTanh, out);
  }
  return out;
}

class GeluMlpFunction : public torch::autograd::Function<GeluMlpFunction> {
  enum Input { kRows, kUp, kDown, kUpBias, kDownBias };

 public:
  // rows [m, in], weights {[in, inner], [inner, out]}, biases {[inner], [out]} or none. `through`:
  // backward passes GELU.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            at::TensorList weights, at::TensorList biases, bool through) {
    RECORD_FUNCTION("dtrain::gelu_mlp", AllOf(rows, weights, biases));
    const at::Tensor& up = weights[0];
    const at::Tensor& down = weights[1];
    const bool biased = !biases.empty();
    const at::Tensor before =
        through ? at::empty({rows.size(0), up.size(1)}, rows.options()) : at::Tensor();
    const at::Tensor inner = GeluOfProduct(before, rows, up, biased ? biases[0] : at::Tensor());
    context->save_for_backward({up.requires_grad() ? rows : at::Tensor(), before,
                                down.requires_grad() ? inner : at::Tensor(), up, down});
    context->saved_data["biased"] = biased;
    at::Tensor y = at::empty({rows.size(0), down.size(1)}, rows.options());
    Multiply(y, inner, down, biased ? biases[1] : at::Tensor());
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "dtrain::ops::GeluMlp has no second derivative");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &rows = saved[0], &before = saved[1], &inner = saved[2], &up = saved[3],
                     &down = saved[4];
    const at::Tensor dy = gradients[0].contiguous();
    RECORD_FUNCTION("dtrain::gelu_mlp_backward", AllOf(dy, saved));
    const bool biased = context->saved_data["biased"].toBool();
    const auto wanted = [&](Input input) { return context->needs_input_grad(input); };
    variable_list out(3);
    if (wanted(kDown)) {
      out[kDown] = GradientOfTransposed(down, inner, dy);
    }
    const bool bias_of_up = biased && wanted(kUpBias);
    at::Tensor dbefore;
    if (wanted(kRows) || wanted(kUp) || bias_of_up) {
      dbefore = GeluOfProductBackward(before, dy, down);
    }
    if (wanted(kRows)) {
      out[kRows] = Multiply(dbefore, up.t());
    }
    if (wanted(kUp)) {
      out[kUp] = GradientOfTransposed(up, rows, dbefore);
    }
    if (biased) {
      out.push_back(bias_of_up ? dbefore.sum(0) : at::Tensor());
      out.push_back(wanted(kDownBias) ? dy.sum(0) : at::Tensor());
    }
    out.emplace_back();  // `through` has no gradient.
    return out;
  }
};

bool Takes(const at::Tensor& x, at::TensorList more) {
  const auto alike = [&](const at::Tensor& tensor) {
    return Fusable(tensor) && tensor.scalar_type() == x.scalar_type() &&
           tensor.device() == x.device();
  };
  return Fusable(x) && std::all_of(more.begin(), more.end(), alike);
}

// Biases [out] of weights [in, out].
bool Fit(at::TensorList biases, at::TensorList weights) {
  for (size_t i = 0; i < biases.size(); ++i) {
    if (biases[i].dim() != 1 || biases[i].size(0) != weights[i].size(1)) {
      return false;
    }
  }
  return true;
}

}  // namespace

at::Tensor GeluMlp(const at::Tensor& x, const at::Tensor& up, const at::Tensor& down,
                   at::TensorList biases) {
  TORCH_CHECK_VALUE(biases.empty() || biases.size() == 2, "GeluMlp takes no biases or two, not ",
                    biases.size());
  const variable_list weights = {up, down};
  const bool fused = up.dim() == 2 && down.dim() == 2 && x.dim() > 0 && Takes(x, weights) &&
                     Takes(x, biases) && x.size(-1) == up.size(0) && up.size(1) == down.size(0) &&
                     Fit(biases, weights);
  if (!fused) {  // These operations name the tensor that does not fit.
    const at::Tensor inner = TransposedLinear(x, up, biases.empty() ? at::Tensor() : biases[0]);
    return TransposedLinear(Gelu(inner, GeluForm::kTanh), down,
                            biases.empty() ? at::Tensor() : biases[1]);
  }
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = down.size(1);
  // Nobody asks for GELU's input when only `down` or its bias trains, or nothing does.
  const bool through =
      at::GradMode::is_enabled() &&
      (x.requires_grad() || up.requires_grad() || (!biases.empty() && biases[0].requires_grad()));
  return GeluMlpFunction::apply(x.reshape({-1, x.size(-1)}), at::TensorList(weights), biases,
                                through)
      .view(sizes);
}

}  // namespace dtrain::ops
