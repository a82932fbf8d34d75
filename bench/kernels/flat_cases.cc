// Cases on flat buffers: AdamW, the gradient's sum of squares, copies between types and sums.
#include "bench/kernels/case.h"
#include "kernels/flat.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/adamw_stochastic.h"
#include "kernels/optimizer/grad_norm.h"

namespace dtrain::bench {
namespace {

using F = float;
using B = BFloat16;

Kernel AdamW(bool copy) {
  return [copy](Arena& a, const Threads& t) {
    kernels::AdamWCpu(a.elements, a.Stream<F>(0), a.Stream<F>(3), a.Stream<F>(1), a.Stream<F>(2),
                      copy ? a.Stream<B>(4) : nullptr, {.weight_decay = 0.1, .step = 5}, t);
  };
}

template <class Operation>
Kernel Flat(Operation operation, DType from, DType to) {
  return [=](Arena& a, const Threads& t) {
    operation(a.elements, kernels::ConstFlat{a.Stream<F>(0), from},
              kernels::MutableFlat{a.Stream<F>(1), to}, t);
  };
}

}  // namespace

std::vector<Case> FlatCases() {
  constexpr DType kF = DType::kFloat32;
  constexpr DType kB = DType::kBFloat16;
  const auto scale = [](int64_t n, kernels::ConstFlat from, kernels::MutableFlat to,
                        const Threads& t) { kernels::ScaleCpu(n, from, to, 0.5F, t); };
  const auto copy = [](int64_t n, kernels::ConstFlat from, kernels::MutableFlat to,
                       const Threads& t) { kernels::CopyCpu(n, from, to, t); };
  const auto add = [](int64_t n, kernels::ConstFlat from, kernels::MutableFlat to,
                      const Threads& t) { kernels::AccumulateCpu(n, from, to, t); };
  return {
      {"adamw_f32", {.read4 = 4, .write4 = 3, .in_place = 3}, AdamW(false)},
      {"adamw_f32_copy_bf16", {.read4 = 4, .write4 = 3, .write2 = 1, .in_place = 3}, AdamW(true)},
      {"adamw_bf16_copy_bf16",
       {.read4 = 3, .read2 = 1, .write4 = 3, .write2 = 1, .in_place = 3},
       [](Arena& a, const Threads& t) {
         kernels::AdamWCpuBf16Grad(a.elements, a.Stream<F>(0), a.Stream<B>(3), a.Stream<F>(1),
                                   a.Stream<F>(2), a.Stream<B>(4), {.weight_decay = 0.1, .step = 5},
                                   t);
       }},
      {"adamw_stochastic",
       {.read4 = 2, .read2 = 2, .write4 = 1, .write2 = 2, .in_place = 1, .in_place2 = 2},
       [](Arena& a, const Threads& t) {
         kernels::AdamWStochasticCpu(a.elements, 0, a.Stream<F>(0), a.Stream<F>(1), a.Stream<B>(2),
                                     a.Stream<B>(3), nullptr, {.weight_decay = 0.1, .step = 5},
                                     {.seed = 3}, t);
       }},
      {"square_sum_f32",
       {.read4 = 1},
       [](Arena& a, const Threads& t) {
         kernels::SquareSumCpu(a.Stream<F>(0), 0, a.elements, a.scratch.data(), t);
       }},
      {"square_sum_bf16",
       {.read2 = 1},
       [](Arena& a, const Threads& t) {
         kernels::SquareSumCpu(a.Stream<B>(0), 0, a.elements, a.scratch.data(), t);
       }},
      {"copy_f32", {.read4 = 1, .write4 = 1}, Flat(copy, kF, kF)},
      {"cast_f32_bf16", {.read4 = 1, .write2 = 1}, Flat(copy, kF, kB)},
      {"cast_bf16_f32", {.read2 = 1, .write4 = 1}, Flat(copy, kB, kF)},
      {"scale_f32", {.read4 = 1, .write4 = 1}, Flat(scale, kF, kF)},
      {"accumulate_f32", {.read4 = 2, .write4 = 1, .in_place = 1}, Flat(add, kF, kF)},
  };
}

}  // namespace dtrain::bench
