#include "ATen/Functions.h"
#include "dtrain/ops.h"
#include "kernels/rmsnorm.h"
#include "runtime/engine/torch_pool.h"
#include "runtime/ops/fused.h"
#include "torch/csrc/autograd/custom_function.h"

namespace dtrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <class T>
at::Tensor Forward(const at::Tensor& x, const at::Tensor& weight, double eps, at::Tensor& rstd) {
  RECORD_FUNCTION("dtrain::rms_norm", Inputs(x, weight));
  at::Tensor y = at::empty_like(x);
  kernels::RmsNormForwardArgs<T> args;
  args.hidden = weight.numel();
  args.tokens = x.numel() / args.hidden;
  args.eps = static_cast<float>(eps);
  args.x = Data<T>(x);
  args.weight = Data<T>(weight);
  args.y = MutableData<T>(y);
  rstd = at::empty({args.tokens}, x.options().dtype(at::kFloat));
  args.rstd = rstd.mutable_data_ptr<float>();
  kernels::RmsNormForwardCpu(args, TorchParallelFor);
  return y;
}

template <class T>
variable_list Backward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd,
                       const at::Tensor& dy) {
  RECORD_FUNCTION("dtrain::rms_norm_backward", Inputs(x, weight, rstd, dy));
  at::Tensor dx = at::empty_like(x);
  at::Tensor dweight = at::empty_like(weight);
  kernels::RmsNormBackwardArgs<T> args;
  args.hidden = weight.numel();
  args.tokens = x.numel() / args.hidden;
  const at::Tensor workspace = at::empty(
      {kernels::RmsNormWorkspaceFloats(args.tokens, args.hidden)}, x.options().dtype(at::kFloat));
  args.h = Data<T>(x);
  args.weight = Data<T>(weight);
  args.rstd = rstd.const_data_ptr<float>();
  args.dy = Data<T>(dy);
  args.dh = MutableData<T>(dx);
  args.dweight = MutableData<T>(dweight);
  args.workspace = workspace.mutable_data_ptr<float>();
  kernels::RmsNormBackwardCpu(args, TorchParallelFor);
  return {dx, dweight, at::Tensor()};
}

class RmsNormFunction : public torch::autograd::Function<RmsNormFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            double eps) {
    at::Tensor rstd;
    at::Tensor y = x.scalar_type() == at::kFloat ? Forward<float>(x, weight, eps, rstd)
                                                 : Forward<BFloat16>(x, weight, eps, rstd);
    context->save_for_backward({x, weight, rstd});
    return y;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor dy = gradients[0].contiguous();
    return saved[0].scalar_type() == at::kFloat
               ? Backward<float>(saved[0], saved[1], saved[2], dy)
               : Backward<BFloat16>(saved[0], saved[1], saved[2], dy);
  }
};

}  // namespace

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (Fusable(x) && Fusable(weight) && x.scalar_type() == weight.scalar_type() &&
      weight.dim() == 1 && x.dim() > 0 && x.size(-1) == weight.size(0) && x.numel() > 0) {
    return RmsNormFunction::apply(x, weight, eps);
  }
  return at::rms_norm(x, weight.sizes(), weight, eps);
}

NormOfSum AddRmsNorm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                     double eps) {
  const at::Tensor sum = x + residual;
  return {RmsNorm(sum, weight, eps), sum};
}

}  // namespace dtrain::ops
