// The fused operations with inputs of every form, for tests that run them somewhere else than on
// the host. In fp64 each of them falls back to ATen, which is then what it is compared with.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "dtrain/ops.h"
#include "tests/runtime/testing/ops_testing.h"

namespace dtrain::ops::testing {

struct OperationCase {
  std::string name;
  int launches;                              // Kernels launched by forward and backward.
  std::vector<std::vector<int64_t>> shapes;  // The leaves'.
  Operation run;                             // Results of the leaves' type.
  bool sums = false;  // Over rows or tokens, so the order of a device's threads shows.
};

// `hidden` is the width of a row where there are rows.
inline std::vector<OperationCase> CasesOfWidth(int64_t hidden) {
  const auto like = [](const at::Tensor& x, at::ScalarType type) {
    return at::TensorOptions().dtype(type).device(x.device());
  };
  const auto positions = [=](const at::Tensor& x) {
    return (at::arange(4 * 5, like(x, at::kLong)).view({4, 5}) * 7) % 11;
  };
  const auto table = [](const at::Tensor& x, int64_t rotary_dim) {
    const RopeTable host = MakeRopeTable(11, rotary_dim, 100.0);
    return RopeTable{host.cos.to(x.device()), host.sin.to(x.device())};
  };
  const auto targets = [=](const at::Tensor& x, int64_t vocab) {
    at::Tensor ids = at::arange(x.size(0), like(x, at::kLong)) * 5 % vocab;
    ids[1] = -100;
    return ids;
  };
  // Losses are fp32; their gradients are what has the leaves' type.
  const auto loss = [](const Loss& made, const at::Tensor& x) -> Tensors {
    return {(made.sum / static_cast<double>(made.count)).to(x.scalar_type())};
  };
  const CrossEntropyOptions smooth{.z_loss = 1e-3, .label_smoothing = 0.1};
  std::vector<OperationCase> cases = {
      {"RmsNorm",
       2,
       {{3, 5, hidden}, {hidden}},
       [](const Tensors& in) -> Tensors { return {RmsNorm(in[0], in[1], 1e-3)}; },
       true},
      {"LayerNorm with bias",
       2,
       {{3, 5, hidden}, {hidden}, {hidden}},
       [](const Tensors& in) -> Tensors { return {LayerNorm(in[0], in[1], in[2], 1e-3)}; },
       true},
      {"LayerNorm",
       2,
       {{3, 5, hidden}, {hidden}},
       [](const Tensors& in) -> Tensors { return {LayerNorm(in[0], in[1], {}, 1e-3)}; },
       true},
      {"AddRmsNorm",
       2,
       {{3, 5, hidden}, {3, 5, hidden}, {hidden}},
       [](const Tensors& in) -> Tensors {
         const NormOfSum out = AddRmsNorm(in[0], in[1], in[2], 1e-3);
         return {out.y, out.sum};
       },
       true},
      {"AddLayerNorm",
       2,
       {{3, 5, hidden}, {3, 5, hidden}, {hidden}, {hidden}},
       [](const Tensors& in) -> Tensors {
         const NormOfSum out = AddLayerNorm(in[0], in[1], in[2], in[3], 1e-3);
         return {out.y, out.sum};
       },
       true},
      {"SwiGlu",
       2,
       {{4, hidden}, {4, hidden}},
       [](const Tensors& in) -> Tensors { return {SwiGlu(in[0], in[1])}; }},
      {"SwiGlu of one buffer",
       2,
       {{4, 2 * hidden}},
       [](const Tensors& in) -> Tensors { return {SwiGlu(in[0])}; }},
      {"CrossEntropy",
       2,
       {{33, hidden}},
       [=](const Tensors& in) -> Tensors {
         return loss(CrossEntropy(in[0], targets(in[0], hidden), smooth), in[0]);
       },
       true},
      {"LinearCrossEntropy in chunks",
       6,
       {{33, 24}, {hidden, 24}},
       [=](const Tensors& in) -> Tensors {
         return loss(LinearCrossEntropy(in[0], in[1], targets(in[0], hidden), smooth, 11), in[0]);
       },
       true},
      {"Embedding",
       1,
       {{50, hidden}},
       [=](const Tensors& in) -> Tensors {
         const at::Tensor ids = at::arange(4 * 30, like(in[0], at::kLong)).view({4, 30}) * 7 % 43;
         return {Embedding(ids, in[0], 3)};
       }},
  };
  for (const GeluForm form : {GeluForm::kExact, GeluForm::kTanh}) {
    const std::string name = form == GeluForm::kTanh ? " (tanh)" : " (exact)";
    cases.push_back({"Gelu" + name, 2, {{7, hidden}}, [=](const Tensors& in) -> Tensors {
                       return {Gelu(in[0], form)};
                     }});
    cases.push_back(
        {"GeGlu" + name, 2, {{4, hidden}, {4, hidden}}, [=](const Tensors& in) -> Tensors {
           return {GeGlu(in[0], in[1], form)};
         }});
    cases.push_back(
        {"GeGlu of one buffer" + name, 2, {{4, 2 * hidden}}, [=](const Tensors& in) -> Tensors {
           return {GeGlu(in[0], form)};
         }});
  }
  for (const RopeForm form : {RopeForm::kHalfSplit, RopeForm::kInterleaved}) {
    const std::string name = form == RopeForm::kInterleaved ? " (interleaved)" : " (half-split)";
    cases.push_back({"Rope" + name, 2, {{4, 5, 3, 24}}, [=](const Tensors& in) -> Tensors {
                       return {Rope(in[0], table(in[0], 16), {.form = form})};
                     }});
    cases.push_back(
        {"RopeQkv at positions" + name, 2, {{4, 5, 8 * 16}}, [=](const Tensors& in) -> Tensors {
           const Qkv out = RopeQkv(in[0], 4, 2, table(in[0], 16),
                                   {.form = form, .positions = positions(in[0])});
           return {out.q, out.k, out.v};
         }});
  }
  return cases;
}

// fp32: a few roundings and sums of some hundred terms. bf16: a rounding is 2^-9 of the value.
inline double ToleranceOf(at::ScalarType type) { return type == at::kFloat ? 1e-5 : 0x1p-7; }

}  // namespace dtrain::ops::testing
