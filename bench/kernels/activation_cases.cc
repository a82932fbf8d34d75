// Cases of the activations.
#include "bench/kernels/both_types.h"
#include "kernels/swiglu.h"

namespace dtrain::bench {

std::vector<Case> ActivationCases() {
  std::vector<Case> cases;
  AddBothTypes(cases, "swiglu_forward", 2, 1, [](auto type) -> Kernel {
    using T = decltype(type);
    return [](Arena& a, const Threads& t) {
      kernels::SwiGluForwardCpu(kernels::SwiGluForwardArgs<T>{.count = a.elements,
                                                              .gate = a.Stream<T>(0),
                                                              .up = a.Stream<T>(1),
                                                              .out = a.Stream<T>(2)},
                                t);
    };
  });
  AddBothTypes(cases, "swiglu_backward", 3, 2, [](auto type) -> Kernel {
    using T = decltype(type);
    return [](Arena& a, const Threads& t) {
      kernels::SwiGluBackwardCpu(kernels::SwiGluBackwardArgs<T>{.count = a.elements,
                                                                .gate = a.Stream<T>(0),
                                                                .up = a.Stream<T>(1),
                                                                .dout = a.Stream<T>(2),
                                                                .dgate = a.Stream<T>(3),
                                                                .dup = a.Stream<T>(4)},
                                 t);
    };
  });
  return cases;
}

}  // namespace dtrain::bench
