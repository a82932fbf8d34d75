// Several linear layers of one input as one product each way.
#include <algorithm>
#include <vector>

#include "ATen/Functions.h"
#include "dtrain/ops.h"
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

at::Tensor Product(const at::Tensor& rows, at::TensorList weights, at::TensorList biases) {
  const at::Tensor merged = InOne(weights);
  if (merged.defined() && biases.empty()) {
    return at::mm(rows, merged.t());
  }
  at::Tensor y = at::empty({rows.size(0), Rows(weights)}, rows.options());
  EachPart(y, weights, [&](size_t i, at::Tensor part) {
    if (biases.empty()) {
      at::mm_out(part, rows, weights[i].t());
    } else {
      at::addmm_out(part, biases[i], rows, weights[i].t());
    }
  });
  return y;
}

at::Tensor GradientOfRows(const at::Tensor& dy, at::TensorList weights) {
  if (const at::Tensor merged = InOne(weights); merged.defined()) {
    return at::mm(dy, merged);
  }
  at::Tensor dx;
  EachPart(dy, weights, [&](size_t i, const at::Tensor& part) {
    if (i == 0) {
      dx = at::mm(part, weights[i]);
    } else {
      dx.addmm_(part, weights[i]);
    }
  });
  return dx;
}

// Of every weight that wants one, undefined for the others; each is dense.
void AddGradientsOfWeights(AutogradContext& context, const at::Tensor& rows, const at::Tensor& dy,
                           at::TensorList weights, variable_list& out) {
  variable_list homes;
  bool all = true;
  for (size_t i = 0; i < weights.size(); ++i) {
    const bool wanted = context.needs_input_grad(1 + i);
    homes.push_back(wanted ? TakeGradientHome(weights[i]) : at::Tensor());
    all = all && wanted;
  }
  const bool at_home = std::all_of(homes.begin(), homes.end(),
                                   [](const at::Tensor& home) { return home.defined(); });
  at::Tensor merged = all && at_home ? InOne(homes) : at::Tensor();
  if (merged.defined()) {
    at::mm_out(merged, dy.t(), rows);
    out.insert(out.end(), homes.begin(), homes.end());
  } else if (all && !at_home) {
    merged = at::mm(dy.t(), rows);
    int64_t row = 0;
    for (const at::Tensor& weight : weights) {
      out.push_back(merged.narrow(0, row, weight.size(0)));
      row += weight.size(0);
    }
  } else {
    EachPart(dy, weights, [&](size_t i, const at::Tensor& part) {
      if (homes[i].defined()) {
        at::mm_out(homes[i], part.t(), rows);
      } else if (context.needs_input_grad(1 + i)) {
        homes[i] = at::mm(part.t(), rows);
      }
    });
    out.insert(out.end(), homes.begin(), homes.end());
  }
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
