// Several linear layers of one input as one product each way.
#include <algorithm>
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

// Calls body(i, columns of y that are weight i's).
template <class Body>
void EachPart(const at::Tensor& y, at::TensorList weights, Body body) {
  int64_t column = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    body(i, y.narrow(1, column, weights[i].size(0)));
    column += weights[i].size(0);
  }
}

at::Tensor Product(const at::Tensor& rows, at::TensorList weights, at::TensorList biases) {
  const at::Tensor merged = InOne(weights);
  if (merged.defined() && biases.empty()) {
    return Multiply(rows, merged.t());
  }
  at::Tensor y = at::empty({rows.size(0), Rows(weights)}, rows.options());
  EachPart(y, weights, [&](size_t i, const at::Tensor& part) {
    Multiply(part, rows, weights[i].t(), biases.empty() ? at::Tensor() : biases[i]);
  });
  return y;
}

at::Tensor GradientOfRows(const at::Tensor& dy, at::TensorList weights) {
  if (const at::Tensor merged = InOne(weights); merged.defined()) {
    return Multiply(dy, merged);
  }
  at::Tensor dx;
  EachPart(dy, weights, [&](size_t i, const at::Tensor& part) {
    if (i == 0) {
      dx = Multiply(part, weights[i]);
    } else {
      dx.addmm_(part, weights[i]);
    }
  });
  return dx;
}

// Adds to `out` the gradient of every weight that wants one. It is undefined for the others, and
// for those whose gradient went home.
void AddGradientsOfWeights(const AutogradContext& context, const at::Tensor& rows,
                           const at::Tensor& dy, at::TensorList weights, variable_list& out) {
  const std::vector<bool> wanted = WeightsWanted(context, weights.size());
  const std::vector<GradientHome> homes = TakeWeightHomes(weights, wanted);
  if (const GradientHome home = InOne(homes); home.place.defined()) {
    MultiplyHome(home, dy.t(), rows);
    out.resize(out.size() + weights.size());
    return;
  }
  bool all = true;
  for (size_t i = 0; i < weights.size(); ++i) {
    all = all && wanted[i] && !homes[i].place.defined();
  }
  const at::Tensor merged = all ? Multiply(dy.t(), rows) : at::Tensor();
  int64_t row = 0;
  EachPart(dy, weights, [&](size_t i, const at::Tensor& part) {
    at::Tensor& gradient = out.emplace_back();
    if (homes[i].place.defined()) {
      MultiplyHome(homes[i], part.t(), rows);
    } else if (all) {
      gradient = merged.narrow(0, row, weights[i].size(0));
    } else if (wanted[i]) {
      gradient = Multiply(part.t(), rows);
    }
    row += weights[i].size(0);
  });
}

// Adds to `out` the gradient of every bias that wants one: parts of one sum over all rows.
void AddGradientsOfBiases(const AutogradContext& context, const at::Tensor& dy,
                          at::TensorList weights, variable_list& out) {
  const auto wanted = [&](size_t i) { return context.needs_input_grad(1 + weights.size() + i); };
  bool any = false;
  for (size_t i = 0; i < weights.size(); ++i) {
    any = any || wanted(i);
  }
  const at::Tensor sums = any ? dy.sum(0) : at::Tensor();
  int64_t column = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const int64_t width = weights[i].size(0);
    out.push_back(wanted(i) ? sums.narrow(0, column, width) : at::Tensor());
    column += width;
  }
}

class MergedLinearFunction : public torch::autograd::Function<MergedLinearFunction> {
 public:
  // rows [m, in]; biases: none or as many as weights.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            at::TensorList weights, at::TensorList biases) {
    RECORD_FUNCTION("dtrain::merged_linear", AllOf(rows, weights, biases));
    const bool trained = std::any_of(weights.begin(), weights.end(), [](const at::Tensor& weight) {
      return weight.requires_grad();
    });
    variable_list saved = {trained ? rows : at::Tensor()};  // Frozen layers keep no activations.
    saved.insert(saved.end(), weights.begin(), weights.end());
    context->save_for_backward(std::move(saved));
    context->saved_data["biases"] = !biases.empty();
    return Product(rows, weights, biases);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "dtrain::ops::MergedLinear has no second derivative");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& rows = saved[0];
    const auto weights = at::TensorList(saved).slice(1);
    const at::Tensor dy = gradients[0].contiguous();
    RECORD_FUNCTION("dtrain::merged_linear_backward", AllOf(dy, saved));
    variable_list out = {context->needs_input_grad(0) ? GradientOfRows(dy, weights) : at::Tensor()};
    AddGradientsOfWeights(*context, rows, dy, weights, out);
    if (context->saved_data["biases"].toBool()) {
      AddGradientsOfBiases(*context, dy, weights, out);
    }
    return out;
  }
};

}  // namespace

at::Tensor MergedLinear(const at::Tensor& x, at::TensorList weights, at::TensorList biases) {
  CheckLinear("MergedLinear", x, weights, biases);
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = Rows(weights);
  return MergedLinearFunction::apply(x.reshape({-1, x.size(-1)}), weights, biases).view(sizes);
}

}  // namespace dtrain::ops
