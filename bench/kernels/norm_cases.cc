// Cases of the norms, with and without a residual; RMSNorm of attention heads too, whose rows are
// short.
#include "bench/kernels/both_types.h"
#include "kernels/layers/layernorm.h"
#include "kernels/layers/rmsnorm.h"

namespace dtrain::bench {
namespace {

template <class T>
kernels::RmsNormForwardArgs<T> RmsForward(Arena& a, bool residual) {
  return {.tokens = a.rows(),
          .hidden = kHidden,
          .x = a.Stream<T>(0),
          .residual = residual ? a.Stream<T>(1) : nullptr,
          .weight = a.Stream<T>(5),
          .sum = residual ? a.Stream<T>(2) : nullptr,
          .y = a.Stream<T>(3),
          .rstd = a.rstd.data()};
}

template <class T>
kernels::RmsNormBackwardArgs<T> RmsBackward(Arena& a, bool residual) {
  return {.tokens = a.rows(),
          .hidden = kHidden,
          .h = a.Stream<T>(0),
          .weight = a.Stream<T>(5),
          .rstd = a.rstd.data(),
          .dy = a.Stream<T>(1),
          .dsum = residual ? a.Stream<T>(2) : nullptr,
          .dh = a.Stream<T>(3),
          .dweight = a.Stream<T>(4),
          .workspace = a.workspace.data()};
}

// Weight and bias share a stream's beginning, as their gradients do.
template <class T>
kernels::LayerNormForwardArgs<T> LayerForward(Arena& a, bool residual) {
  return {.tokens = a.rows(),
          .hidden = kHidden,
          .x = a.Stream<T>(0),
          .residual = residual ? a.Stream<T>(1) : nullptr,
          .weight = a.Stream<T>(5),
          .bias = a.Stream<T>(5) + kHidden,
          .sum = residual ? a.Stream<T>(2) : nullptr,
          .y = a.Stream<T>(3),
          .mean = a.mean.data(),
          .rstd = a.rstd.data()};
}

template <class T>
kernels::LayerNormBackwardArgs<T> LayerBackward(Arena& a, bool residual) {
  return {.tokens = a.rows(),
          .hidden = kHidden,
          .h = a.Stream<T>(0),
          .weight = a.Stream<T>(5),
          .mean = a.mean.data(),
          .rstd = a.rstd.data(),
          .dy = a.Stream<T>(1),
          .dsum = residual ? a.Stream<T>(2) : nullptr,
          .dh = a.Stream<T>(3),
          .dweight = a.Stream<T>(4),
          .dbias = a.Stream<T>(4) + kHidden,
          .workspace = a.workspace.data()};
}

// The q and k heads of a row, each normed by itself.
void AddHeads(std::vector<Case>& cases) {
  AddBothTypes(cases, "rmsnorm_heads_forward", 1, 1, [](auto type) -> Kernel {
    return [](Arena& a, const Threads& t) {
      auto args = RmsForward<decltype(type)>(a, /*residual=*/false);
      args.tokens = a.head_rows();
      args.hidden = kHeadDim;
      kernels::RmsNormForwardCpu(args, t);
    };
  });
  AddBothTypes(cases, "rmsnorm_heads_backward", 2, 1, [](auto type) -> Kernel {
    return [](Arena& a, const Threads& t) {
      auto args = RmsBackward<decltype(type)>(a, /*residual=*/false);
      args.tokens = a.head_rows();
      args.hidden = kHeadDim;
      kernels::RmsNormBackwardCpu(args, t);
    };
  });
}

void AddLayerNorm(std::vector<Case>& cases, bool residual) {
  const std::string name = residual ? "layernorm_add" : "layernorm";
  AddBothTypes(cases, name + "_forward", residual ? 2 : 1, residual ? 2 : 1,
               [=](auto type) -> Kernel {
                 return [=](Arena& a, const Threads& t) {
                   kernels::LayerNormForwardCpu(LayerForward<decltype(type)>(a, residual), t);
                 };
               });
  AddBothTypes(cases, name + "_backward", residual ? 3 : 2, 1, [=](auto type) -> Kernel {
    return [=](Arena& a, const Threads& t) {
      kernels::LayerNormBackwardCpu(LayerBackward<decltype(type)>(a, residual), t);
    };
  });
}

}  // namespace

std::vector<Case> NormCases() {
  std::vector<Case> cases;
  for (const bool residual : {false, true}) {
    AddLayerNorm(cases, residual);
    const std::string name = residual ? "rmsnorm_add" : "rmsnorm";
    AddBothTypes(cases, name + "_forward", residual ? 2 : 1, residual ? 2 : 1,
                 [=](auto type) -> Kernel {
                   return [=](Arena& a, const Threads& t) {
                     kernels::RmsNormForwardCpu(RmsForward<decltype(type)>(a, residual), t);
                   };
                 });
    AddBothTypes(cases, name + "_backward", residual ? 3 : 2, 1, [=](auto type) -> Kernel {
      return [=](Arena& a, const Threads& t) {
        kernels::RmsNormBackwardCpu(RmsBackward<decltype(type)>(a, residual), t);
      };
    });
  }
  AddHeads(cases);
  return cases;
}

}  // namespace dtrain::bench
