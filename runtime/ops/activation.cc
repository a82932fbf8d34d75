#include "ATen/Functions.h"
#include "dtrain/ops.h"
#include "kernels/swiglu.h"
#include "runtime/engine/torch_pool.h"
#include "runtime/ops/fused.h"
#include "torch/csrc/autograd/custom_function.h"

namespace dtrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <class T>
at::Tensor Forward(const at::Tensor& gate, const at::Tensor& up) {
  RECORD_FUNCTION("dtrain::swiglu", Inputs(gate, up));
  at::Tensor out = at::empty_like(gate);
  kernels::SwiGluForwardCpu(
      kernels::SwiGluForwardArgs<T>{gate.numel(), Data<T>(gate), Data<T>(up), MutableData<T>(out)},
      TorchParallelFor);
  return out;
}

template <class T>
variable_list Backward(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& dout) {
  RECORD_FUNCTION("dtrain::swiglu_backward", Inputs(gate, up, dout));
  at::Tensor dgate = at::empty_like(gate);
  at::Tensor dup = at::empty_like(up);
  kernels::SwiGluBackwardCpu(
      kernels::SwiGluBackwardArgs<T>{gate.numel(), Data<T>(gate), Data<T>(up), Data<T>(dout),
                                     MutableData<T>(dgate), MutableData<T>(dup)},
      TorchParallelFor);
  return {dgate, dup};
}

class SwiGluFunction : public torch::autograd::Function<SwiGluFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate,
                            const at::Tensor& up) {
    context->save_for_backward({gate, up});
    return gate.scalar_type() == at::kFloat ? Forward<float>(gate, up)
                                            : Forward<BFloat16>(gate, up);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor dout = gradients[0].contiguous();
    return saved[0].scalar_type() == at::kFloat ? Backward<float>(saved[0], saved[1], dout)
                                                : Backward<BFloat16>(saved[0], saved[1], dout);
  }
};

// gate and up of gate_up [..., 2 hidden], as views.
std::pair<at::Tensor, at::Tensor> Halves(const at::Tensor& gate_up) {
  TORCH_CHECK(gate_up.dim() > 0 && gate_up.size(-1) % 2 == 0,
              "a fused gate_up is [..., 2 hidden], not ", gate_up.sizes());
  const int64_t hidden = gate_up.size(-1) / 2;
  return {gate_up.narrow(-1, 0, hidden), gate_up.narrow(-1, hidden, hidden)};
}

}  // namespace

at::Tensor Gelu(const at::Tensor& x, GeluForm form) {
  return at::gelu(x, form == GeluForm::kTanh ? "tanh" : "none");
}

at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up) {
  if (Fusable(gate) && Fusable(up) && gate.scalar_type() == up.scalar_type() &&
      gate.sizes() == up.sizes()) {
    return SwiGluFunction::apply(gate, up);
  }
  return at::silu(gate) * up;
}

at::Tensor SwiGlu(const at::Tensor& gate_up) {
  const auto [gate, up] = Halves(gate_up);
  return at::silu(gate) * up;
}

at::Tensor GeGlu(const at::Tensor& gate, const at::Tensor& up, GeluForm form) {
  return Gelu(gate, form) * up;
}

at::Tensor GeGlu(const at::Tensor& gate_up, GeluForm form) {
  const auto [gate, up] = Halves(gate_up);
  return Gelu(gate, form) * up;
}

}  // namespace dtrain::ops
