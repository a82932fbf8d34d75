#include <algorithm>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "dtrain/config.h"
#include "dtrain/fp8.h"
#include "dtrain/ops.h"
#include "runtime/ops/fp8_matrix.h"
#include "runtime/ops/fp8_weight_codes.h"
#include "runtime/ops/fused.h"
#include "runtime/ops/linear_products.h"
#include "torch/csrc/autograd/custom_function.h"

namespace dtrain {

Fp8Options Fp8OptionsOf(const Config& config) {
  const Fp8Config fp8 = config.fp8();
  return {.enabled = fp8.enabled,
          .scaling = fp8.rowwise ? Fp8Options::Scaling::kRowwise : Fp8Options::Scaling::kTensorwise,
          .gradients =
              fp8.e4m3_gradients ? Fp8Options::Gradients::kE4m3 : Fp8Options::Gradients::kE5m2};
}

namespace ops {
namespace {

using kernels::Fp8Format;
using Scaling = Fp8Options::Scaling;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Rows of FP8 units are multiples of 16 bytes.
constexpr int64_t kMultiple = 16;

bool Fits(const at::Tensor& rows, const at::Tensor& weight) {
  return rows.numel() > 0 && weight.numel() > 0 && rows.size(0) % kMultiple == 0 &&
         rows.size(1) % kMultiple == 0 && weight.size(0) % kMultiple == 0;
}

// The tensors that forward leaves to backward, before the weights.
enum SavedTensor : size_t { kRows, kRowsInverse, kWeightInverse, kWeightScale, kSavedNumber };

class Fp8LinearFunction : public torch::autograd::Function<Fp8LinearFunction> {
 public:
  // rows [m, in], weights [out_i, in], contiguous -> [m, sum of out_i].
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            at::TensorList weights, const Fp8Options& options) {
    RECORD_FUNCTION("dtrain::fp8_linear", AllOf(rows, weights));
    const Fp8Matrix w = WeightsToFp8(weights, options.scaling);
    Fp8Matrix x;
    variable_list saved(kSavedNumber);
    if (options.scaling == Scaling::kTensorwise) {
      // Backward wants the same codes again, transposed: half the memory of rows.
      const Fp8Both both = BothToFp8(rows, Fp8Format::kE4m3);
      x = both.as_is;
      saved = {both.transposed.codes, x.inverse, w.inverse, w.scale};
    } else {
      x = ToFp8(rows, Fp8Format::kE4m3, options.scaling);
      saved[kRows] = rows;
    }
    saved.insert(saved.end(), weights.begin(), weights.end());
    context->save_for_backward(std::move(saved));
    context->saved_data["scaling"] = static_cast<int64_t>(options.scaling);
    context->saved_data["gradients"] = static_cast<int64_t>(options.gradients);
    return Fp8Product(x, w, rows.scalar_type(), /*exact=*/false);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "dtrain::ops::Fp8Linear has no second derivative");
    const variable_list saved = context->get_saved_variables();
    const auto weights = at::TensorList(saved).slice(kSavedNumber);
    const at::Tensor dy = gradients[0].contiguous();
    RECORD_FUNCTION("dtrain::fp8_linear_backward", AllOf(dy, weights));
    const auto scaling = static_cast<Scaling>(context->saved_data["scaling"].toInt());
    const bool e4m3 = context->saved_data["gradients"].toInt() ==
                      static_cast<int64_t>(Fp8Options::Gradients::kE4m3);
    const Fp8Format format = e4m3 ? Fp8Format::kE4m3 : Fp8Format::kE5m2;
    const bool tensorwise = scaling == Scaling::kTensorwise;
    const std::vector<bool> wanted = WeightsWanted(*context, weights.size());
    const bool of_weights = std::find(wanted.begin(), wanted.end(), true) != wanted.end();
    const Fp8Both both =
        tensorwise && of_weights ? BothToFp8(dy, format) : Fp8Both{ToFp8(dy, format, scaling), {}};
    variable_list out(1);
    if (context->needs_input_grad(0)) {
      const Fp8Matrix w_t = TransposedWeightsToFp8(
          weights, scaling, {{}, saved[kWeightInverse], saved[kWeightScale]});
      out[0] = Fp8Product(both.as_is, w_t, dy.scalar_type(), /*exact=*/true);
    }
    if (of_weights) {
      const Fp8Matrix g_t = tensorwise ? both.transposed : TransposedToFp8(dy, format, {});
      const Fp8Matrix x_t = tensorwise ? Fp8Matrix{saved[kRows], saved[kRowsInverse]}
                                       : TransposedToFp8(saved[kRows], Fp8Format::kE4m3, {});
      AddGradientsOfWeights(wanted, g_t, x_t, weights, out);
    }
    out.resize(1 + weights.size() + 1);
    return out;
  }

 private:
  // Appends a gradient for each weight: undefined for a weight that wants none, and for one whose
  // gradient went home.
  static void AddGradientsOfWeights(const std::vector<bool>& wanted, const Fp8Matrix& g_t,
                                    const Fp8Matrix& x_t, at::TensorList weights,
                                    variable_list& out) {
    const std::vector<GradientHome> homes = TakeWeightHomes(weights, wanted, /*fp32_sums=*/true);
    const bool any_home = std::any_of(
        homes.begin(), homes.end(), [](const GradientHome& home) { return home.place.defined(); });
    if (const GradientHome home = InOne(homes); home.place.defined()) {
      Fp8ProductHome(home, g_t, x_t);
      return;
    }
    const at::ScalarType type = weights[0].scalar_type();
    const at::Tensor all = Fp8Product(g_t, x_t, any_home ? at::kFloat : type, /*exact=*/true);
    int64_t row = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      const at::Tensor part = all.narrow(0, row, weights[i].size(0));
      row += weights[i].size(0);
      at::Tensor& gradient = out.emplace_back();
      if (homes[i].place.defined()) {
        PutHome(homes[i], part);
      } else if (wanted[i]) {
        gradient = part.to(type);
      }
    }
  }
};

}  // namespace

at::Tensor Fp8Linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                     const Fp8Options& options) {
  return bias.defined() ? MergedFp8Linear(x, {weight}, {bias}, options)
                        : MergedFp8Linear(x, {weight}, {}, options);
}

at::Tensor MergedFp8Linear(const at::Tensor& x, at::TensorList weights, at::TensorList biases,
                           const Fp8Options& options) {
  if (!options.enabled || weights.empty() || x.dim() == 0) {
    return MergedLinear(x, weights, biases);
  }
  CheckLinear("MergedFp8Linear", x, weights, biases);
  const at::Tensor rows = x.reshape({-1, x.size(-1)}).contiguous();
  variable_list dense;  // A transposed weight (GPT-2's) is copied.
  for (const at::Tensor& weight : weights) {
    dense.push_back(weight.contiguous());
  }
  const bool fits = std::all_of(dense.begin(), dense.end(), [&](const at::Tensor& weight) {
    return Fusable(weight) && weight.scalar_type() == rows.scalar_type() &&
           weight.device() == rows.device() && Fits(rows, weight);
  });
  if (!Fusable(rows) || !fits) {
    return MergedLinear(x, weights, biases);
  }
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = Rows(weights);
  const at::Tensor y = Fp8LinearFunction::apply(rows, at::TensorList(dense), options).view(sizes);
  return biases.empty() ? y : y + (biases.size() == 1 ? biases[0] : at::cat(biases));
}

}  // namespace ops
}  // namespace dtrain
