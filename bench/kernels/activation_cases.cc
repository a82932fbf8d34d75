// Cases of the activations, alone and gating. A gate-and-up buffer [rows, 2 hidden] lies over two
// streams; what it reads and writes is what gate and up apart do.
#include "bench/kernels/both_types.h"
#include "kernels/layers/activation.h"

namespace dtrain::bench {
namespace {

using kernels::Activation;

void AddAlone(std::vector<Case>& cases, const std::string& name, Activation activation) {
  AddBothTypes(cases, name + "_forward", 1, 1, [=](auto type) -> Kernel {
    using T = decltype(type);
    return [=](Arena& a, const Threads& t) {
      kernels::ActivationForwardCpu(
          kernels::ActivationForwardArgs<T>{activation, a.elements, a.Stream<T>(0), a.Stream<T>(1)},
          t);
    };
  });
  AddBothTypes(cases, name + "_backward", 2, 1, [=](auto type) -> Kernel {
    using T = decltype(type);
    return [=](Arena& a, const Threads& t) {
      kernels::ActivationBackwardCpu(
          kernels::ActivationBackwardArgs<T>{activation, a.elements, a.Stream<T>(0), a.Stream<T>(1),
                                             a.Stream<T>(2)},
          t);
    };
  });
}

// Gate, up and the gradients of both start at these streams; rows are `stride` apart.
struct Layout {
  int64_t stride;
  int gate, dgate;
};

void AddGated(std::vector<Case>& cases, const std::string& name, Activation activation,
              Layout layout) {
  const auto up_of = [layout](auto* gate, auto* next_stream) {
    return layout.stride == kHidden ? next_stream : gate + kHidden;
  };
  AddBothTypes(cases, name + "_forward", 2, 1, [=](auto type) -> Kernel {
    using T = decltype(type);
    return [=](Arena& a, const Threads& t) {
      T* const gate = a.Stream<T>(layout.gate);
      kernels::GatedForwardCpu(
          kernels::GatedForwardArgs<T>{.activation = activation,
                                       .rows = a.rows(),
                                       .hidden = kHidden,
                                       .stride = layout.stride,
                                       .gate = gate,
                                       .up = up_of(gate, a.Stream<T>(layout.gate + 1)),
                                       .out = a.Stream<T>(2)},
          t);
    };
  });
  AddBothTypes(cases, name + "_backward", 3, 2, [=](auto type) -> Kernel {
    using T = decltype(type);
    return [=](Arena& a, const Threads& t) {
      T* const gate = a.Stream<T>(layout.gate);
      T* const dgate = a.Stream<T>(layout.dgate);
      kernels::GatedBackwardCpu(
          kernels::GatedBackwardArgs<T>{.activation = activation,
                                        .rows = a.rows(),
                                        .hidden = kHidden,
                                        .stride = layout.stride,
                                        .gate = gate,
                                        .up = up_of(gate, a.Stream<T>(layout.gate + 1)),
                                        .dout = a.Stream<T>(2),
                                        .dgate = dgate,
                                        .dup = up_of(dgate, a.Stream<T>(layout.dgate + 1))},
          t);
    };
  });
}

}  // namespace

std::vector<Case> ActivationCases() {
  std::vector<Case> cases;
  const Layout apart = {.stride = kHidden, .gate = 0, .dgate = 3};
  const Layout fused = {.stride = 2 * kHidden, .gate = 0, .dgate = 3};
  AddGated(cases, "swiglu", Activation::kSilu, apart);
  AddGated(cases, "swiglu_fused", Activation::kSilu, fused);
  AddGated(cases, "geglu_fused", Activation::kGelu, fused);
  AddAlone(cases, "gelu", Activation::kGelu);
  AddAlone(cases, "gelu_tanh", Activation::kGeluTanh);
  return cases;
}

}  // namespace dtrain::bench
