// Cases over flat buffers: AdamW in its forms, casts, sums.
#include "base/status.h"
#include "bench/kernels/cuda_case.h"
#include "kernels/flat.h"
#include "kernels/optimizer/adamw_stochastic.h"
#include "kernels/optimizer/grad_norm.h"

namespace dtrain::bench {
namespace {

template <class T>
absl::Status SquareSum(const Arena& a, CudaStream stream) {
  DT_RETURN_IF_ERROR(
      kernels::BlockSquareSumsCuda(a.Stream<T>(0), 0, a.elements, a.block_sums, stream));
  return kernels::TreeSumCuda(a.block_sums, kernels::NormBlocks(0, a.elements), a.sum, stream);
}

}  // namespace

std::vector<Case> CudaFlatCases() {
  std::vector<Case> cases;
  const auto adamw = [](bool copy) {
    return [copy](const Arena& a, CudaStream stream) {
      return kernels::AdamWCuda(a.elements, a.Stream<float>(0), a.Stream<float>(3),
                                a.Stream<float>(1), a.Stream<float>(2),
                                copy ? a.Stream<BFloat16>(4) : nullptr, a.adamw, stream);
    };
  };
  cases.push_back({"adamw_f32", {.read4 = 4, .write4 = 3, .in_place = 3}, adamw(false)});
  cases.push_back(
      {"adamw_f32_copy_bf16", {.read4 = 4, .write4 = 3, .write2 = 1, .in_place = 3}, adamw(true)});
  cases.push_back({"adamw_bf16_copy_bf16",
                   {.read4 = 3, .read2 = 1, .write4 = 3, .write2 = 1, .in_place = 3},
                   [](const Arena& a, CudaStream stream) {
                     return kernels::AdamWCudaBf16Grad(
                         a.elements, a.Stream<float>(0), a.Stream<BFloat16>(3), a.Stream<float>(1),
                         a.Stream<float>(2), a.Stream<BFloat16>(4), a.adamw, stream);
                   }});
  const StreamMix bf16_states{
      .read4 = 2, .read2 = 2, .write4 = 1, .write2 = 2, .in_place = 1, .in_place2 = 2};
  cases.push_back({"adamw_bf16_states", bf16_states, [](const Arena& a, CudaStream stream) {
                     return kernels::AdamWCudaBf16State(
                         a.elements, a.Stream<float>(0), a.Stream<float>(3), a.Stream<BFloat16>(1),
                         a.Stream<BFloat16>(2), nullptr, a.adamw, stream);
                   }});
  cases.push_back({"adamw_stochastic", bf16_states, [](const Arena& a, CudaStream stream) {
                     return kernels::AdamWStochasticCuda(a.elements, 0, a.Stream<float>(0),
                                                         a.Stream<float>(3), a.Stream<BFloat16>(1),
                                                         a.Stream<BFloat16>(2), nullptr, a.adamw,
                                                         a.random, stream);
                   }});
  const auto flat = [](DType from, DType to) {
    return [=](const Arena& a, CudaStream stream) {
      return kernels::CopyCuda(a.elements, {a.streams[0], from}, {a.streams[1], to}, stream);
    };
  };
  cases.push_back(
      {"cast_f32_bf16", {.read4 = 1, .write2 = 1}, flat(DType::kFloat32, DType::kBFloat16)});
  cases.push_back(
      {"cast_bf16_f32", {.read2 = 1, .write4 = 1}, flat(DType::kBFloat16, DType::kFloat32)});
  cases.push_back({"accumulate_f32",
                   {.read4 = 2, .write4 = 1, .in_place = 1},
                   [](const Arena& a, CudaStream stream) {
                     return kernels::AccumulateCuda(a.elements, {a.streams[0], DType::kFloat32},
                                                    {a.streams[1], DType::kFloat32}, stream);
                   }});
  AddBoth(cases, "square_sum", 1, 0, [](auto type, const Arena& a, CudaStream stream) {
    return SquareSum<decltype(type)>(a, stream);
  });
  return cases;
}

}  // namespace dtrain::bench
