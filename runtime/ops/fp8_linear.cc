#include <vector>

#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "dtrain/config.h"
#include "dtrain/fp8.h"
#include "dtrain/ops.h"
#include "runtime/ops/fp8_matrix.h"
#include "runtime/ops/fp8_weight_codes.h"
#include "runtime/ops/fused.h"
#include "torch/csrc/autograd/custom_function.h"

namespace dtrain {

Fp8Options Fp8OptionsOf(const Config& config) {
  Fp8Options options;
  options.enabled = config.Find("fp8.enabled")->get<bool>();
  options.scaling = *config.Find("fp8.scaling") == "rowwise" ? Fp8Options::Scaling::kRowwise
                                                             : Fp8Options::Scaling::kTensorwise;
  options.gradients = *config.Find("fp8.gradients") == "e4m3" ? Fp8Options::Gradients::kE4m3
                                                              : Fp8Options::Gradients::kE5m2;
  return options;
}

namespace ops {
namespace {

using kernels::Fp8Format;
using Scaling = Fp8Options::Scaling;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Of FP8 units: 16 bytes.
constexpr int64_t kMultiple = 16;

bool Fits(const at::Tensor& rows, const at::Tensor& weight) {
  return rows.size(0) > 0 && rows.size(0) % kMultiple == 0 && rows.size(1) % kMultiple == 0 &&
         weight.size(0) % kMultiple == 0;
}

class Fp8LinearFunction : public torch::autograd::Function<Fp8LinearFunction> {
 public:
  // rows [m, in], weight [out, in], both contiguous.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            const at::Tensor& weight, const Fp8Options& options) {
    RECORD_FUNCTION("dtrain::fp8_linear", Inputs(rows, weight));
    const Fp8Matrix w = WeightToFp8(weight, options.scaling);
    Fp8Matrix x;
    if (options.scaling == Scaling::kTensorwise) {
      // Backward wants the same codes again, transposed: half the memory of rows.
      const Fp8Both both = BothToFp8(rows, Fp8Format::kE4m3);
      x = both.as_is;
      context->save_for_backward({weight, both.transposed.codes, x.inverse, w.inverse, w.scale});
    } else {
      x = ToFp8(rows, Fp8Format::kE4m3, options.scaling);
      context->save_for_backward({weight, rows, at::Tensor(), at::Tensor(), at::Tensor()});
    }
    context->saved_data["scaling"] = static_cast<int64_t>(options.scaling);
    context->saved_data["gradients"] = static_cast<int64_t>(options.gradients);
    return Fp8Product(x, w, rows.scalar_type(), /*exact=*/false);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "dtrain::ops::Fp8Linear has no second derivative");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& weight = saved[0];
    const at::Tensor dy = gradients[0].contiguous();
    RECORD_FUNCTION("dtrain::fp8_linear_backward", Inputs(dy, weight, saved[1]));
    const auto scaling = static_cast<Scaling>(context->saved_data["scaling"].toInt());
    const bool e4m3 = context->saved_data["gradients"].toInt() ==
                      static_cast<int64_t>(Fp8Options::Gradients::kE4m3);
    const Fp8Format format = e4m3 ? Fp8Format::kE4m3 : Fp8Format::kE5m2;
    const bool tensorwise = scaling == Scaling::kTensorwise;
    const bool of_weight = context->needs_input_grad(1);
    const Fp8Both both =
        tensorwise && of_weight ? BothToFp8(dy, format) : Fp8Both{ToFp8(dy, format, scaling), {}};
    at::Tensor dx;
    at::Tensor dweight;
    if (context->needs_input_grad(0)) {
      const Fp8Matrix w_t = TransposedWeightToFp8(weight, scaling, {{}, saved[3], saved[4]});
      dx = Fp8Product(both.as_is, w_t, dy.scalar_type(), /*exact=*/true);
    }
    if (of_weight) {
      const Fp8Matrix g_t = tensorwise ? both.transposed : TransposedToFp8(dy, format, {});
      const Fp8Matrix x_t = tensorwise ? Fp8Matrix{saved[1], saved[2]}
                                       : TransposedToFp8(saved[1], Fp8Format::kE4m3, {});
      dweight = Fp8Product(g_t, x_t, weight.scalar_type(), /*exact=*/true);
    }
    return {dx, dweight, {}};
  }
};

}  // namespace

at::Tensor Fp8Linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                     const Fp8Options& options) {
  const auto plain = [&] {
    return bias.defined() ? MergedLinear(x, {weight}, {bias}) : MergedLinear(x, {weight});
  };
  if (!options.enabled) {
    return plain();
  }
  TORCH_CHECK(x.dim() > 0 && weight.dim() == 2 && x.size(-1) == weight.size(1),
              "Fp8Linear takes x [..., in] and weight [out, in], not ", x.sizes(), " and ",
              weight.sizes());
  const at::Tensor rows = x.reshape({-1, x.size(-1)}).contiguous();
  const at::Tensor dense = weight.contiguous();
  if (!Fusable(rows) || !Fusable(dense) || rows.scalar_type() != dense.scalar_type() ||
      rows.device() != dense.device() || !Fits(rows, dense)) {
    return plain();
  }
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  const at::Tensor y = Fp8LinearFunction::apply(rows, dense, options).view(sizes);
  return bias.defined() ? y + bias : y;
}

}  // namespace ops
}  // namespace dtrain
