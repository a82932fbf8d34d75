#include "runtime/ops/activation.h"

#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "dtrain/ops.h"
#include "runtime/ops/fused.h"
#include "torch/csrc/autograd/custom_function.h"

namespace dtrain::ops {
namespace {

using kernels::Activation;
using kernels::CudaKernelTable;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Activation ActivationOf(GeluForm form) {
  return form == GeluForm::kTanh ? Activation::kGeluTanh : Activation::kGelu;
}

// The activation by ATen's operations, for tensors that the kernels do not take.
at::Tensor Composite(const at::Tensor& x, Activation activation) {
  if (activation == Activation::kSilu) {
    return at::silu(x);
  }
  return at::gelu(x, activation == Activation::kGeluTanh ? "tanh" : "none");
}

Activation SavedActivation(AutogradContext* context) {
  return static_cast<Activation>(context->saved_data["activation"].toInt());
}

// ---- Alone ----

template <class T>
void Forward(const at::Tensor& x, Activation activation, at::Tensor& y) {
  RECORD_FUNCTION("dtrain::activation", Inputs(x));
  Launch(
      x, kernels::ActivationForwardArgs<T>{activation, x.numel(), Data<T>(x), MutableData<T>(y)},
      kernels::ActivationForwardCpu,
      OfType<T>(&CudaKernelTable::activation_forward, &CudaKernelTable::activation_forward_bf16));
}

template <class T>
void Backward(const at::Tensor& x, const at::Tensor& dy, Activation activation, at::Tensor& dx) {
  RECORD_FUNCTION("dtrain::activation_backward", Inputs(x, dy));
  Launch(
      x,
      kernels::ActivationBackwardArgs<T>{activation, x.numel(), Data<T>(x), Data<T>(dy),
                                         MutableData<T>(dx)},
      kernels::ActivationBackwardCpu,
      OfType<T>(&CudaKernelTable::activation_backward, &CudaKernelTable::activation_backward_bf16));
}

class ActivationFunction : public torch::autograd::Function<ActivationFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, int64_t activation) {
    context->save_for_backward({x});
    context->saved_data["activation"] = activation;
    at::Tensor y = at::empty_like(x);
    ActivationForward(x, static_cast<Activation>(activation), y);
    return y;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::Tensor x = context->get_saved_variables()[0];
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dx = at::empty_like(x);
    ActivationBackward(x, dy, SavedActivation(context), dx);
    return {dx, at::Tensor()};
  }
};

// ---- Gating ----

// gate and up, apart or as the halves of one buffer's rows (then `up` is undefined).
template <class T, class Args>
Args GatedArgs(const at::Tensor& gate, const at::Tensor& up, Activation activation) {
  Args args;
  args.activation = activation;
  args.gate = Data<T>(gate);
  if (up.defined()) {
    args.rows = 1;
    args.hidden = args.stride = gate.numel();
    args.up = Data<T>(up);
  } else {
    args.stride = gate.size(-1);
    args.hidden = args.stride / 2;
    args.rows = args.stride == 0 ? 0 : gate.numel() / args.stride;
    args.up = args.gate + args.hidden;
  }
  return args;
}

template <class T>
at::Tensor GatedForward(const at::Tensor& gate, const at::Tensor& up, Activation activation) {
  RECORD_FUNCTION("dtrain::gated_unit", Inputs(gate, up));
  std::vector<int64_t> sizes = gate.sizes().vec();
  if (!up.defined()) {
    sizes.back() /= 2;
  }
  at::Tensor out = at::empty(sizes, gate.options());
  auto args = GatedArgs<T, kernels::GatedForwardArgs<T>>(gate, up, activation);
  args.out = MutableData<T>(out);
  Launch(gate, args, kernels::GatedForwardCpu,
         OfType<T>(&CudaKernelTable::gated_forward, &CudaKernelTable::gated_forward_bf16));
  return out;
}

template <class T>
variable_list GatedBackward(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& dout,
                            Activation activation) {
  RECORD_FUNCTION("dtrain::gated_unit_backward", Inputs(gate, up, dout));
  at::Tensor dgate = at::empty_like(gate);
  at::Tensor dup = up.defined() ? at::empty_like(up) : at::Tensor();
  auto args = GatedArgs<T, kernels::GatedBackwardArgs<T>>(gate, up, activation);
  args.dout = Data<T>(dout);
  args.dgate = MutableData<T>(dgate);
  args.dup = up.defined() ? MutableData<T>(dup) : args.dgate + args.hidden;
  Launch(gate, args, kernels::GatedBackwardCpu,
         OfType<T>(&CudaKernelTable::gated_backward, &CudaKernelTable::gated_backward_bf16));
  return {dgate, dup};
}

class GatedFunction : public torch::autograd::Function<GatedFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate,
                            const MaybeTensor& maybe_up, int64_t activation) {
    const at::Tensor up = Given(maybe_up);
    context->save_for_backward({gate, up});
    context->saved_data["activation"] = activation;
    const auto kind = static_cast<Activation>(activation);
    return gate.scalar_type() == at::kFloat ? GatedForward<float>(gate, up, kind)
                                            : GatedForward<BFloat16>(gate, up, kind);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor dout = gradients[0].contiguous();
    const Activation kind = SavedActivation(context);
    const variable_list out = saved[0].scalar_type() == at::kFloat
                                  ? GatedBackward<float>(saved[0], saved[1], dout, kind)
                                  : GatedBackward<BFloat16>(saved[0], saved[1], dout, kind);
    return {out[0], out[1], at::Tensor()};
  }
};

at::Tensor Gated(const at::Tensor& gate, const at::Tensor& up, Activation activation) {
  if (Fusable(gate) && Fusable(up) && gate.scalar_type() == up.scalar_type() &&
      gate.sizes() == up.sizes() && gate.device() == up.device()) {
    return GatedFunction::apply(gate, Maybe(up), static_cast<int64_t>(activation));
  }
  return Composite(gate, activation) * up;
}

at::Tensor Gated(const at::Tensor& gate_up, Activation activation) {
  TORCH_CHECK(gate_up.dim() > 0 && gate_up.size(-1) % 2 == 0,
              "a fused gate_up is [..., 2 hidden], not ", gate_up.sizes());
  if (Fusable(gate_up)) {
    return GatedFunction::apply(gate_up, MaybeTensor(), static_cast<int64_t>(activation));
  }
  const int64_t hidden = gate_up.size(-1) / 2;
  return Composite(gate_up.narrow(-1, 0, hidden), activation) * gate_up.narrow(-1, hidden, hidden);
}

}  // namespace

void ActivationForward(const at::Tensor& x, Activation activation, at::Tensor y) {
  x.scalar_type() == at::kFloat ? Forward<float>(x, activation, y)
                                : Forward<BFloat16>(x, activation, y);
}

void ActivationBackward(const at::Tensor& x, const at::Tensor& dy, Activation activation,
                        at::Tensor dx) {
  x.scalar_type() == at::kFloat ? Backward<float>(x, dy, activation, dx)
                                : Backward<BFloat16>(x, dy, activation, dx);
}

at::Tensor Gelu(const at::Tensor& x, GeluForm form) {
  if (Fusable(x)) {
    return ActivationFunction::apply(x, static_cast<int64_t>(ActivationOf(form)));
  }
  return Composite(x, ActivationOf(form));
}

at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up) {
  return Gated(gate, up, Activation::kSilu);
}
at::Tensor SwiGlu(const at::Tensor& gate_up) { return Gated(gate_up, Activation::kSilu); }

at::Tensor GeGlu(const at::Tensor& gate, const at::Tensor& up, GeluForm form) {
  return Gated(gate, up, ActivationOf(form));
}
at::Tensor GeGlu(const at::Tensor& gate_up, GeluForm form) {
  return Gated(gate_up, ActivationOf(form));
}

}  // namespace dtrain::ops
