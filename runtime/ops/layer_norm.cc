#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "dtrain/ops.h"
#include "kernels/layers/layernorm.h"
#include "runtime/ops/fused.h"
#include "runtime/ops/norm.h"
#include "torch/csrc/autograd/custom_function.h"

namespace dtrain::ops {
namespace {

using kernels::CudaKernelTable;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LayerNormed {
  at::Tensor y, sum, mean, rstd;
};

// `residual` (and then the sum) and `bias` may be undefined.
template <class T>
LayerNormed Forward(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                    const at::Tensor& bias, double eps) {
  RECORD_FUNCTION("dtrain::layer_norm", Inputs(x, residual, weight, bias));
  LayerNormed out;
  kernels::LayerNormForwardArgs<T> args;
  args.hidden = weight.numel();
  args.tokens = x.numel() / args.hidden;
  args.eps = static_cast<float>(eps);
  args.x = Data<T>(x);
  args.weight = Data<T>(weight);
  args.bias = bias.defined() ? Data<T>(bias) : nullptr;
  if (residual.defined()) {
    out.sum = at::empty_like(x);
    args.residual = Data<T>(residual);
    args.sum = MutableData<T>(out.sum);
  }
  out.y = at::empty_like(x);
  args.y = MutableData<T>(out.y);
  out.mean = at::empty({args.tokens}, x.options().dtype(at::kFloat));
  out.rstd = at::empty_like(out.mean);
  args.mean = out.mean.mutable_data_ptr<float>();
  args.rstd = out.rstd.mutable_data_ptr<float>();
  Launch(x, args, kernels::LayerNormForwardCpu,
         OfType<T>(&CudaKernelTable::layernorm_forward, &CudaKernelTable::layernorm_forward_bf16));
  return out;
}

struct SavedOfLayerNorm {
  at::Tensor h, weight, mean, rstd;
  bool bias;
};

// Gradients of h, weight and bias; `dsum` may be undefined.
template <class T>
variable_list Backward(const SavedOfLayerNorm& saved, const at::Tensor& dy,
                       const at::Tensor& dsum) {
  RECORD_FUNCTION("dtrain::layer_norm_backward",
                  Inputs(saved.h, saved.weight, saved.mean, saved.rstd, dy, dsum));
  at::Tensor dh = at::empty_like(saved.h);
  at::Tensor dweight = at::empty_like(saved.weight);
  at::Tensor dbias = saved.bias ? at::empty_like(saved.weight) : at::Tensor();
  kernels::LayerNormBackwardArgs<T> args;
  args.hidden = saved.weight.numel();
  args.tokens = saved.h.numel() / args.hidden;
  const int64_t floats = OnGpu(saved.h)
                             ? kernels::LayerNormWorkspaceFloatsCuda(args.tokens, args.hidden)
                             : kernels::LayerNormWorkspaceFloats(args.tokens, args.hidden);
  const at::Tensor workspace = at::empty({floats}, saved.h.options().dtype(at::kFloat));
  args.h = Data<T>(saved.h);
  args.weight = Data<T>(saved.weight);
  args.mean = saved.mean.const_data_ptr<float>();
  args.rstd = saved.rstd.const_data_ptr<float>();
  args.dy = Data<T>(dy);
  args.dsum = dsum.defined() ? Data<T>(dsum) : nullptr;
  args.dh = MutableData<T>(dh);
  args.dweight = MutableData<T>(dweight);
  args.dbias = saved.bias ? MutableData<T>(dbias) : nullptr;
  args.workspace = workspace.mutable_data_ptr<float>();
  Launch(
      saved.h, args, kernels::LayerNormBackwardCpu,
      OfType<T>(&CudaKernelTable::layernorm_backward, &CudaKernelTable::layernorm_backward_bf16));
  return {dh, dweight, dbias};
}

variable_list BackwardOfLayerNorm(AutogradContext* context, const at::Tensor& dy,
                                  const at::Tensor& dsum) {
  const variable_list tensors = context->get_saved_variables();
  const SavedOfLayerNorm saved = {tensors[0], tensors[1], tensors[2], tensors[3],
                                  context->saved_data["bias"].toBool()};
  const at::Tensor dense = DenseGradient(dy, saved.h);
  const at::Tensor past = dsum.defined() ? dsum.contiguous() : dsum;
  return saved.h.scalar_type() == at::kFloat ? Backward<float>(saved, dense, past)
                                             : Backward<BFloat16>(saved, dense, past);
}

void Save(AutogradContext* context, const at::Tensor& h, const at::Tensor& weight,
          const at::Tensor& bias, const LayerNormed& out) {
  context->save_for_backward({h, weight, out.mean, out.rstd});
  context->saved_data["bias"] = bias.defined();
}

class LayerNormFunction : public torch::autograd::Function<LayerNormFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const MaybeTensor& maybe_bias, double eps) {
    const at::Tensor bias = Given(maybe_bias);
    const LayerNormed out = x.scalar_type() == at::kFloat
                                ? Forward<float>(x, {}, weight, bias, eps)
                                : Forward<BFloat16>(x, {}, weight, bias, eps);
    Save(context, x, weight, bias, out);
    return out.y;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list out = BackwardOfLayerNorm(context, gradients[0], {});
    return {out[0], out[1], out[2], at::Tensor()};
  }
};

class AddLayerNormFunction : public torch::autograd::Function<AddLayerNormFunction> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& x,
                               const at::Tensor& residual, const at::Tensor& weight,
                               const MaybeTensor& maybe_bias, double eps) {
    const at::Tensor bias = Given(maybe_bias);
    context->set_materialize_grads(false);
    const LayerNormed out = x.scalar_type() == at::kFloat
                                ? Forward<float>(x, residual, weight, bias, eps)
                                : Forward<BFloat16>(x, residual, weight, bias, eps);
    Save(context, out.sum, weight, bias, out);
    return {out.y, out.sum};
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list out = BackwardOfLayerNorm(context, gradients[0], gradients[1]);
    return {out[0], out[0], out[1], out[2], at::Tensor()};
  }
};

bool BiasFusable(const at::Tensor& weight, const at::Tensor& bias) {
  return !bias.defined() || SameKind(weight, bias);
}

}  // namespace

at::Tensor LayerNorm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                     double eps) {
  if (NormFusable(x, weight) && BiasFusable(weight, bias)) {
    return LayerNormFunction::apply(x, weight, Maybe(bias), eps);
  }
  return at::layer_norm(x, weight.sizes(), weight, bias, eps);
}

NormOfSum AddLayerNorm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                       const at::Tensor& bias, double eps) {
  if (NormFusable(x, weight) && BiasFusable(weight, bias) && SameKind(x, residual)) {
    const variable_list out = AddLayerNormFunction::apply(x, residual, weight, Maybe(bias), eps);
    return {out[0], out[1]};
  }
  const at::Tensor sum = x + residual;
  return {LayerNorm(sum, weight, bias, eps), sum};
}

}  // namespace dtrain::ops
