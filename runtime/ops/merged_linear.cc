// Several linear layers of one input as one product each way.
#include <algorithm>
#include <vector>

#include "ATen/Functions.h"
#include "dtrain/ops.h"
#include "runtime/ops/device_matmul.h"
#include "runtime/ops/fused.h"
#include "runtime/ops/gradient_home.h"
#include "torch/csrc/autograd/custom_function.h"

namespace dtrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using Announced = std::vector<c10::IValue>;

Announced AllOf(const at::Tensor& first, at::TensorList more) {
  Announced all;
  all.reserve(1 + more.size());
  all.emplace_back(first);
  for (const at::Tensor& tensor : more) {
    all.emplace_back(tensor);
  }
  return all;
}

int64_t Rows(at::TensorList weights) {
  int64_t rows = 0;
  for (const at::Tensor& weight : weights) {
    rows += weight.size(0);
  }
  return rows;
}

// The weights as one [sum of out, in] where they lie one after the other in one storage, as
// neighbours of an engine's flat parameters do; else undefined.
at::Tensor InOne(at::TensorList weights) {
  int64_t next = weights[0].storage_offset();
  for (const at::Tensor& weight : weights) {
    if (!weight.is_contiguous() || !weight.is_alias_of(weights[0]) ||
        weight.storage_offset() != next) {
      return {};
    }
    next += weight.numel();
  }
  const int64_t in = weights[0].size(1);
  return weights[0].as_strided({Rows(weights), in}, {in, 1});
}

// Calls body(i, columns of y that are weight i's).
template <class Body>
void EachPart(const at::Tensor& y, at::TensorList weights, Body body) {
  int64_t column = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    body(i, y.narrow(1, column, weights[i].size(0)));
    column += weights[i].size(0);
  }
}

// out = a b (+ bias).
void Multiply(at::Tensor out, const at::Tensor& a, const at::Tensor& b,
              const at::Tensor& bias = {}) {
  if (DeviceMatmul(out, a, b, {.bias = bias})) {
    return;
  }
  if (bias.defined()) {
    at::addmm_out(out, bias, a, b);
  } else {
    at::mm_out(out, a, b);
  }
}

at::Tensor Multiply(const at::Tensor& a, const at::Tensor& b) {
  if (!HasDeviceMatmul(a)) {
    return at::mm(a, b);
  }
  at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  Multiply(out, a, b);
  return out;
}

// The gradient of weights of the rows, to where it belongs: a product that adds, where there is
// one, so that a gradient of bf16 factors is summed in fp32 without having been rounded.
void MultiplyHome(at::Tensor place, bool holds, const at::Tensor& dy, const at::Tensor& rows) {
  if (DeviceMatmul(place, dy.t(), rows, {.accumulate = holds})) {
    return;
  }
  if (place.scalar_type() != rows.scalar_type()) {
    const at::Tensor product = at::mm(dy.t(), rows);
    holds ? place.add_(product) : place.copy_(product);
  } else if (holds) {
    place.addmm_(dy.t(), rows);
  } else {
    at::mm_out(place, dy.t(), rows);
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

// Where the gradients of weights that want one may be put; an operation of the host fills, the
// GPU's adds too.
std::vector<GradientHome> HomesOf(const AutogradContext& context, at::TensorList weights) {
  std::vector<GradientHome> homes(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    const bool takes = weights[i].scalar_type() == at::kFloat ||
                       (weights[i].scalar_type() == at::kBFloat16 && HasDeviceMatmul(weights[i]));
    if (takes && context.needs_input_grad(1 + i)) {
      homes[i] = TakeGradientHome(weights[i], /*can_add=*/OnGpu(weights[i]));
    }
  }
  return homes;
}

// The homes as one place, where they are neighbours as their weights are; else undefined.
at::Tensor OneHome(const std::vector<GradientHome>& homes) {
  variable_list places;
  for (const GradientHome& home : homes) {
    if (!home.place.defined() || home.holds != homes[0].holds) {
      return {};
    }
    places.push_back(home.place);
  }
  return InOne(places);
}

// Of every weight that wants one; undefined for the others, and for those whose gradient went home.
void AddGradientsOfWeights(const AutogradContext& context, const at::Tensor& rows,
                           const at::Tensor& dy, at::TensorList weights, variable_list& out) {
  const std::vector<GradientHome> homes = HomesOf(context, weights);
  if (const at::Tensor home = OneHome(homes); home.defined()) {
    MultiplyHome(home, homes[0].holds, dy, rows);
    out.resize(out.size() + weights.size());
    return;
  }
  bool all = true;
  for (size_t i = 0; i < weights.size(); ++i) {
    all = all && context.needs_input_grad(1 + i) && !homes[i].place.defined();
  }
  const at::Tensor merged = all ? Multiply(dy.t(), rows) : at::Tensor();
  int64_t row = 0;
  EachPart(dy, weights, [&](size_t i, const at::Tensor& part) {
    at::Tensor& gradient = out.emplace_back();
    if (homes[i].place.defined()) {
      MultiplyHome(homes[i].place, homes[i].holds, part, rows);
    } else if (all) {
      gradient = merged.narrow(0, row, weights[i].size(0));
    } else if (context.needs_input_grad(1 + i)) {
      gradient = Multiply(part.t(), rows);
    }
    row += weights[i].size(0);
  });
}

class MergedLinearFunction : public torch::autograd::Function<MergedLinearFunction> {
 public:
  // rows [m, in]; biases: none or as many as weights.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            at::TensorList weights, at::TensorList biases) {
    const Announced inputs = AllOf(rows, weights);
    RECORD_FUNCTION("dtrain::merged_linear",
                    c10::ArrayRef<const c10::IValue>(inputs.data(), inputs.size()));
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
    const Announced inputs = AllOf(dy, saved);
    RECORD_FUNCTION("dtrain::merged_linear_backward",
                    c10::ArrayRef<const c10::IValue>(inputs.data(), inputs.size()));
    variable_list out = {context->needs_input_grad(0) ? GradientOfRows(dy, weights) : at::Tensor()};
    AddGradientsOfWeights(*context, rows, dy, weights, out);
    if (context->saved_data["biases"].toBool()) {
      EachPart(dy, weights, [&](size_t i, const at::Tensor& part) {
        out.push_back(context->needs_input_grad(1 + weights.size() + i) ? part.sum(0)
                                                                        : at::Tensor());
      });
    }
    return out;
  }
};

}  // namespace

at::Tensor MergedLinear(const at::Tensor& x, at::TensorList weights, at::TensorList biases) {
  TORCH_CHECK_VALUE(!weights.empty() && x.dim() > 0,
                    "MergedLinear takes x [..., in] and weights, "
                    "not ",
                    x.sizes(), " and ", weights.size(), " weights");
  TORCH_CHECK_VALUE(biases.empty() || biases.size() == weights.size(),
                    "MergedLinear takes no "
                    "biases or one a weight, not ",
                    biases.size(), " for ", weights.size(), " weights");
  for (size_t i = 0; i < weights.size(); ++i) {
    TORCH_CHECK_VALUE(weights[i].dim() == 2 && weights[i].size(1) == x.size(-1),
                      "MergedLinear takes x [..., in] and weights [out, in], not ", x.sizes(),
                      " and ", weights[i].sizes());
    TORCH_CHECK_VALUE(
        biases.empty() || (biases[i].dim() == 1 && biases[i].size(0) == weights[i].size(0)),
        "MergedLinear takes a bias [out] for a weight [out, in], not ",
        biases.empty() ? at::IntArrayRef() : biases[i].sizes(), " for ", weights[i].sizes());
  }
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = Rows(weights);
  return MergedLinearFunction::apply(x.reshape({-1, x.size(-1)}), weights, biases).view(sizes);
}

}  // namespace dtrain::ops
