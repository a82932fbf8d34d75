#include "runtime/ops/linear_products.h"

#include "ATen/Functions.h"
#include "runtime/ops/device_matmul.h"
#include "runtime/ops/fused.h"
#include "torch/csrc/autograd/custom_function.h"

namespace dtrain::ops {

std::vector<c10::IValue> AllOf(const at::Tensor& first, at::TensorList more,
                               at::TensorList and_more) {
  std::vector<c10::IValue> all;
  all.reserve(1 + more.size() + and_more.size());
  all.emplace_back(first);
  all.insert(all.end(), more.begin(), more.end());
  all.insert(all.end(), and_more.begin(), and_more.end());
  return all;
}

void CheckLinear(const char* what, const at::Tensor& x, at::TensorList weights,
                 at::TensorList biases) {
  TORCH_CHECK_VALUE(!weights.empty() && x.dim() > 0, what, " takes x [..., in] and weights, not ",
                    x.sizes(), " and ", weights.size(), " weights");
  TORCH_CHECK_VALUE(biases.empty() || biases.size() == weights.size(), what,
                    " takes no biases or one a weight, not ", biases.size(), " for ",
                    weights.size(), " weights");
  for (size_t i = 0; i < weights.size(); ++i) {
    TORCH_CHECK_VALUE(weights[i].dim() == 2 && weights[i].size(1) == x.size(-1), what,
                      " takes x [..., in] and weights [out, in], not ", x.sizes(), " and ",
                      weights[i].sizes());
    TORCH_CHECK_VALUE(
        biases.empty() || (biases[i].dim() == 1 && biases[i].size(0) == weights[i].size(0)), what,
        " takes a bias [out] for a weight [out, in], not ",
        biases.empty() ? at::IntArrayRef() : biases[i].sizes(), " for ", weights[i].sizes());
  }
}

int64_t Rows(at::TensorList weights) {
  int64_t rows = 0;
  for (const at::Tensor& weight : weights) {
    rows += weight.size(0);
  }
  return rows;
}

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

GradientHome InOne(const std::vector<GradientHome>& homes) {
  std::vector<at::Tensor> places;
  for (const GradientHome& home : homes) {
    if (!home.place.defined() || home.holds != homes[0].holds) {
      return {};
    }
    places.push_back(home.place);
  }
  return {InOne(places), homes[0].holds};
}

void Multiply(at::Tensor out, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
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

GradientHome TakeWeightHome(const at::Tensor& weight, bool fp32_sums) {
  const bool takes = weight.scalar_type() == at::kFloat || (weight.scalar_type() == at::kBFloat16 &&
                                                            (fp32_sums || HasDeviceMatmul(weight)));
  return takes ? TakeGradientHome(weight, /*can_add=*/OnGpu(weight)) : GradientHome();
}

std::vector<bool> WeightsWanted(const torch::autograd::AutogradContext& context, size_t weights) {
  std::vector<bool> wanted(weights);
  for (size_t i = 0; i < weights; ++i) {
    wanted[i] = context.needs_input_grad(1 + i);
  }
  return wanted;
}

std::vector<GradientHome> TakeWeightHomes(at::TensorList weights, const std::vector<bool>& wanted,
                                          bool fp32_sums) {
  std::vector<GradientHome> homes(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    if (wanted[i]) {
      homes[i] = TakeWeightHome(weights[i], fp32_sums);
    }
  }
  return homes;
}

void MultiplyHome(const GradientHome& home, const at::Tensor& a, const at::Tensor& b) {
  at::Tensor place = home.place;
  if (DeviceMatmul(place, a, b, {.accumulate = home.holds})) {
    return;
  }
  if (place.scalar_type() != a.scalar_type()) {
    PutHome(home, at::mm(a, b));
  } else if (home.holds) {
    place.addmm_(a, b);
  } else {
    at::mm_out(place, a, b);
  }
}

at::Tensor GradientOfTransposed(const at::Tensor& weight, const at::Tensor& rows,
                                const at::Tensor& dy) {
  if (const GradientHome home = TakeWeightHome(weight); home.place.defined()) {
    MultiplyHome(home, rows.t(), dy);
    return {};
  }
  return Multiply(rows.t(), dy);
}

void PutHome(const GradientHome& home, const at::Tensor& gradient) {
  at::Tensor place = home.place;
  home.holds ? place.add_(gradient) : place.copy_(gradient);
}

}  // namespace dtrain::ops
