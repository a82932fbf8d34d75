// Cases over rows of kHidden: norms, activations, rotary positions; norms of heads, whose rows are
// short. A gate-and-up buffer
// [rows, 2 hidden] lies over two streams, which follow each other.
#include "bench/kernels/cuda_case.h"
#include "kernels/layers/activation.h"
#include "kernels/layers/layernorm.h"
#include "kernels/layers/rmsnorm.h"
#include "kernels/layers/rope.h"

namespace dtrain::bench {
namespace {

using kernels::Activation;

constexpr int64_t kSequence = 1024;

// Rows of `hidden`.
template <class T>
absl::Status RmsForward(const Arena& a, int64_t hidden, bool residual, CudaStream stream) {
  return kernels::RmsNormForwardCuda(
      kernels::RmsNormForwardArgs<T>{.tokens = a.elements / hidden,
                                     .hidden = hidden,
                                     .x = a.Stream<T>(0),
                                     .residual = residual ? a.Stream<T>(1) : nullptr,
                                     .weight = a.Stream<T>(5),
                                     .sum = residual ? a.Stream<T>(2) : nullptr,
                                     .y = a.Stream<T>(3),
                                     .rstd = a.rstd},
      stream);
}

template <class T>
absl::Status RmsBackward(const Arena& a, int64_t hidden, bool residual, CudaStream stream) {
  return kernels::RmsNormBackwardCuda(
      kernels::RmsNormBackwardArgs<T>{.tokens = a.elements / hidden,
                                      .hidden = hidden,
                                      .h = a.Stream<T>(0),
                                      .weight = a.Stream<T>(5),
                                      .rstd = a.rstd,
                                      .dy = a.Stream<T>(1),
                                      .dsum = residual ? a.Stream<T>(2) : nullptr,
                                      .dh = a.Stream<T>(3),
                                      .dweight = a.Stream<T>(4),
                                      .workspace = a.workspace},
      stream);
}

template <class T>
absl::Status LayerForward(const Arena& a, bool residual, CudaStream stream) {
  return kernels::LayerNormForwardCuda(
      kernels::LayerNormForwardArgs<T>{.tokens = a.rows(),
                                       .hidden = kHidden,
                                       .x = a.Stream<T>(0),
                                       .residual = residual ? a.Stream<T>(1) : nullptr,
                                       .weight = a.Stream<T>(5),
                                       .bias = a.Stream<T>(5) + kHidden,
                                       .sum = residual ? a.Stream<T>(2) : nullptr,
                                       .y = a.Stream<T>(3),
                                       .mean = a.row_numbers[0],
                                       .rstd = a.row_numbers[1]},
      stream);
}

template <class T>
absl::Status LayerBackward(const Arena& a, bool residual, CudaStream stream) {
  return kernels::LayerNormBackwardCuda(
      kernels::LayerNormBackwardArgs<T>{.tokens = a.rows(),
                                        .hidden = kHidden,
                                        .h = a.Stream<T>(0),
                                        .weight = a.Stream<T>(5),
                                        .mean = a.rstd,
                                        .rstd = a.rstd,
                                        .dy = a.Stream<T>(1),
                                        .dsum = residual ? a.Stream<T>(2) : nullptr,
                                        .dh = a.Stream<T>(3),
                                        .dweight = a.Stream<T>(4),
                                        .dbias = a.Stream<T>(4) + kHidden,
                                        .workspace = a.workspace},
      stream);
}

void AddRmsNorm(std::vector<Case>& cases, const std::string& name, int64_t hidden, bool residual) {
  AddBoth(cases, name + "_forward", residual ? 2 : 1, residual ? 2 : 1,
          [=](auto type, const Arena& a, CudaStream stream) {
            return RmsForward<decltype(type)>(a, hidden, residual, stream);
          });
  AddBoth(cases, name + "_backward", residual ? 3 : 2, 1,
          [=](auto type, const Arena& a, CudaStream stream) {
            return RmsBackward<decltype(type)>(a, hidden, residual, stream);
          });
}

// The rows of gate and of up, and of their gradients: in buffers of their own, or side by side.
template <class T>
absl::Status GatedForward(const Arena& a, Activation activation, bool fused, CudaStream stream) {
  T* const gate = a.Stream<T>(0);
  return kernels::GatedForwardCuda(
      kernels::GatedForwardArgs<T>{.activation = activation,
                                   .rows = a.rows(),
                                   .hidden = kHidden,
                                   .stride = fused ? 2 * kHidden : kHidden,
                                   .gate = gate,
                                   .up = fused ? gate + kHidden : a.Stream<T>(1),
                                   .out = a.Stream<T>(2)},
      stream);
}

template <class T>
absl::Status GatedBackward(const Arena& a, Activation activation, bool fused, CudaStream stream) {
  T* const gate = a.Stream<T>(0);
  T* const dgate = a.Stream<T>(3);
  return kernels::GatedBackwardCuda(
      kernels::GatedBackwardArgs<T>{.activation = activation,
                                    .rows = a.rows(),
                                    .hidden = kHidden,
                                    .stride = fused ? 2 * kHidden : kHidden,
                                    .gate = gate,
                                    .up = fused ? gate + kHidden : a.Stream<T>(1),
                                    .dout = a.Stream<T>(2),
                                    .dgate = dgate,
                                    .dup = fused ? dgate + kHidden : a.Stream<T>(4)},
      stream);
}

void AddGated(std::vector<Case>& cases, const std::string& name, Activation activation,
              bool fused) {
  AddBoth(cases, name + "_forward", 2, 1, [=](auto type, const Arena& a, CudaStream stream) {
    return GatedForward<decltype(type)>(a, activation, fused, stream);
  });
  AddBoth(cases, name + "_backward", 3, 2, [=](auto type, const Arena& a, CudaStream stream) {
    return GatedBackward<decltype(type)>(a, activation, fused, stream);
  });
}

void AddAlone(std::vector<Case>& cases, const std::string& name, Activation activation) {
  AddBoth(cases, name + "_forward", 1, 1, [=](auto type, const Arena& a, CudaStream stream) {
    using T = decltype(type);
    return kernels::ActivationForwardCuda(
        kernels::ActivationForwardArgs<T>{activation, a.elements, a.Stream<T>(0), a.Stream<T>(1)},
        stream);
  });
  AddBoth(cases, name + "_backward", 2, 1, [=](auto type, const Arena& a, CudaStream stream) {
    using T = decltype(type);
    return kernels::ActivationBackwardCuda(
        kernels::ActivationBackwardArgs<T>{activation, a.elements, a.Stream<T>(0), a.Stream<T>(1),
                                           a.Stream<T>(2)},
        stream);
  });
}

template <class T>
kernels::RopeArgs<T> RopeArgsOf(const Arena& a, kernels::RopeForm form) {
  kernels::RopeArgs<T> args;
  args.form = form;
  args.tokens = a.rows();
  args.sequence = kSequence;
  args.head_dim = args.rotary_dim = kHeadDim;
  args.cos = a.Stream<float>(4);
  args.sin = a.Stream<float>(5);
  return args;
}

void AddRope(std::vector<Case>& cases) {
  for (const auto form : {kernels::RopeForm::kHalfSplit, kernels::RopeForm::kInterleaved}) {
    const bool halves = form == kernels::RopeForm::kHalfSplit;
    AddBoth(cases, halves ? "rope_halves" : "rope_interleaved", 1, 1,
            [=](auto type, const Arena& a, CudaStream stream) {
              using T = decltype(type);
              kernels::RopeArgs<T> args = RopeArgsOf<T>(a, form);
              args.parts[0] = {kHidden / kHeadDim, true,    a.Stream<T>(0),
                               a.Stream<T>(1),     kHidden, kHidden};
              return kernels::RopeCuda(args, stream);
            });
  }
  // Three quarters of the heads are q's, the rest k's and v's: to their fused projection's
  // gradient.
  AddBoth(cases, "rope_qkv_backward", 1, 1, [](auto type, const Arena& a, CudaStream stream) {
    using T = decltype(type);
    kernels::RopeArgs<T> args = RopeArgsOf<T>(a, kernels::RopeForm::kHalfSplit);
    args.inverse = true;
    const T* from = a.Stream<T>(0);
    T* to = a.Stream<T>(1);
    constexpr int64_t kEighth = kHidden / kHeadDim / 8;
    int part = 0;
    for (const int64_t heads : {6 * kEighth, kEighth, kEighth}) {
      const int64_t row = heads * kHeadDim;
      args.parts[part] = {heads, part < 2, from, to, row, kHidden};
      from += a.rows() * row;
      to += row;
      ++part;
    }
    return kernels::RopeCuda(args, stream);
  });
}

}  // namespace

std::vector<Case> CudaRowCases() {
  std::vector<Case> cases;
  AddRmsNorm(cases, "rmsnorm", kHidden, /*residual=*/false);
  AddRmsNorm(cases, "rmsnorm_add", kHidden, /*residual=*/true);
  AddRmsNorm(cases, "rmsnorm_heads", kHeadDim, /*residual=*/false);
  for (const bool residual : {false, true}) {
    const std::string name = residual ? "layernorm_add" : "layernorm";
    AddBoth(cases, name + "_forward", residual ? 2 : 1, residual ? 2 : 1,
            [=](auto type, const Arena& a, CudaStream stream) {
              return LayerForward<decltype(type)>(a, residual, stream);
            });
    AddBoth(cases, name + "_backward", residual ? 3 : 2, 1,
            [=](auto type, const Arena& a, CudaStream stream) {
              return LayerBackward<decltype(type)>(a, residual, stream);
            });
  }
  AddGated(cases, "swiglu", Activation::kSilu, /*fused=*/false);
  AddGated(cases, "swiglu_fused", Activation::kSilu, /*fused=*/true);
  AddGated(cases, "geglu_fused", Activation::kGelu, /*fused=*/true);
  AddAlone(cases, "gelu", Activation::kGelu);
  AddAlone(cases, "gelu_tanh", Activation::kGeluTanh);
  AddRope(cases);
  return cases;
}

}  // namespace dtrain::bench
