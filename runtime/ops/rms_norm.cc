#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "dtrain/ops.h"
#include "kernels/layers/rmsnorm.h"
#include "runtime/ops/fused.h"
#include "runtime/ops/norm.h"
#include "torch/csrc/autograd/custom_function.h"

namespace dtrain::ops {
namespace {

using kernels::CudaKernelTable;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RmsNormed {
  at::Tensor y, sum, rstd;
};

// `residual` and the sum are undefined without a residual.
template <class T>
RmsNormed Forward(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                  double eps) {
  RECORD_FUNCTION("dtrain::rms_norm", Inputs(x, residual, weight));
  RmsNormed out;
  kernels::RmsNormForwardArgs<T> args;
  args.hidden = weight.numel();
  args.tokens = x.numel() / args.hidden;
  args.eps = static_cast<float>(eps);
  args.x = Data<T>(x);
  args.weight = Data<T>(weight);
  if (residual.defined()) {
    out.sum = at::empty_like(x);
    args.residual = Data<T>(residual);
    args.sum = MutableData<T>(out.sum);
  }
  out.y = at::empty_like(x);
  args.y = MutableData<T>(out.y);
  out.rstd = at::empty({args.tokens}, x.options().dtype(at::kFloat));
  args.rstd = out.rstd.mutable_data_ptr<float>();
  Launch(x, args, kernels::RmsNormForwardCpu,
         OfType<T>(&CudaKernelTable::rmsnorm_forward, &CudaKernelTable::rmsnorm_forward_bf16));
  return out;
}

// Gradients of h and of the weight; `dsum` may be undefined.
template <class T>
variable_list Backward(const at::Tensor& h, const at::Tensor& weight, const at::Tensor& rstd,
                       const at::Tensor& dy, const at::Tensor& dsum) {
  RECORD_FUNCTION("dtrain::rms_norm_backward", Inputs(h, weight, rstd, dy, dsum));
  at::Tensor dh = at::empty_like(h);
  at::Tensor dweight = at::empty_like(weight);
  kernels::RmsNormBackwardArgs<T> args;
  args.hidden = weight.numel();
  args.tokens = h.numel() / args.hidden;
  const int64_t floats = OnGpu(h) ? kernels::RmsNormWorkspaceFloatsCuda(args.tokens, args.hidden)
                                  : kernels::RmsNormWorkspaceFloats(args.tokens, args.hidden);
  const at::Tensor workspace = at::empty({floats}, h.options().dtype(at::kFloat));
  args.h = Data<T>(h);
  args.weight = Data<T>(weight);
  args.rstd = rstd.const_data_ptr<float>();
  args.dy = Data<T>(dy);
  args.dsum = dsum.defined() ? Data<T>(dsum) : nullptr;
  args.dh = MutableData<T>(dh);
  args.dweight = MutableData<T>(dweight);
  args.workspace = workspace.mutable_data_ptr<float>();
  Launch(h, args, kernels::RmsNormBackwardCpu,
         OfType<T>(&CudaKernelTable::rmsnorm_backward, &CudaKernelTable::rmsnorm_backward_bf16));
  return {dh, dweight};
}

variable_list BackwardOfRmsNorm(AutogradContext* context, const at::Tensor& dy,
                                const at::Tensor& dsum) {
  const variable_list saved = context->get_saved_variables();
  const at::Tensor past = dsum.defined() ? dsum.contiguous() : dsum;
  return saved[0].scalar_type() == at::kFloat
             ? Backward<float>(saved[0], saved[1], saved[2], DenseGradient(dy, saved[0]), past)
             : Backward<BFloat16>(saved[0], saved[1], saved[2], DenseGradient(dy, saved[0]), past);
}

class RmsNormFunction : public torch::autograd::Function<RmsNormFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            double eps) {
    const RmsNormed out = x.scalar_type() == at::kFloat ? Forward<float>(x, {}, weight, eps)
                                                        : Forward<BFloat16>(x, {}, weight, eps);
    context->save_for_backward({x, weight, out.rstd});
    return out.y;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list out = BackwardOfRmsNorm(context, gradients[0], {});
    return {out[0], out[1], at::Tensor()};
  }
};

class AddRmsNormFunction : public torch::autograd::Function<AddRmsNormFunction> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& x,
                               const at::Tensor& residual, const at::Tensor& weight, double eps) {
    context->set_materialize_grads(false);
    const RmsNormed out = x.scalar_type() == at::kFloat
                              ? Forward<float>(x, residual, weight, eps)
                              : Forward<BFloat16>(x, residual, weight, eps);
    context->save_for_backward({out.sum, weight, out.rstd});
    return {out.y, out.sum};
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list out = BackwardOfRmsNorm(context, gradients[0], gradients[1]);
    return {out[0], out[0], out[1], at::Tensor()};
  }
};

}  // namespace

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (NormFusable(x, weight)) {
    return RmsNormFunction::apply(x, weight, eps);
  }
  return at::rms_norm(x, weight.sizes(), weight, eps);
}

NormOfSum AddRmsNorm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                     double eps) {
  if (NormFusable(x, weight) && SameKind(x, residual)) {
    const variable_list out = AddRmsNormFunction::apply(x, residual, weight, eps);
    return {out[0], out[1]};
  }
  const at::Tensor sum = x + residual;
  return {RmsNorm(sum, weight, eps), sum};
}

}  // namespace dtrain::ops
