// AdamW, Adam, SGD, Lion and Adagrad: from settings to one kernel call a piece.
#include "kernels/optimizer/adamw_rounded.h"
#include "kernels/optimizer/adamw_stochastic.h"
#include "runtime/model/torch_pool.h"
#include "runtime/optimizer/adamw_step.h"
#include "runtime/optimizer/step_options.h"
#include "runtime/optimizer/update_rule.h"

namespace dtrain {
namespace {

using Kind = OptimizerConfig::Kind;

class ElementwiseRule : public UpdateRule {
 public:
  explicit ElementwiseRule(const OptimizerConfig& optimizer) : optimizer_(optimizer) {}
  std::string name() const override { return optimizer_.name(); }
  std::vector<std::string> states() const override { return optimizer_.state_slots(); }
  float first_state() const override {
    return static_cast<float>(optimizer_.initial_accumulator_value);
  }

 protected:
  const OptimizerConfig optimizer_;
};

class AdamRule final : public ElementwiseRule {
 public:
  using ElementwiseRule::ElementwiseRule;
  void Update(const UpdateStep& step, const UpdatePiece& piece,
              const PieceMemory& memory) const override {
    AdamWStep(optimizer_, step, piece, memory);
  }
  bool rounds(const UpdateStep& step, const PieceMemory& memory) const override {
    return !step.rounding.has_value() && memory.states[0].dtype == DType::kFloat32;
  }
  kernels::WeightSums UpdateRounded(const UpdateStep& step, const UpdatePiece& piece,
                                    const PieceMemory& memory,
                                    const kernels::KeptGradient& kept) const override {
    return kernels::AdamWRoundedCpu({.n = piece.elements,
                                     .first = piece.flat,
                                     .p = memory.weights,
                                     .g = memory.gradient,
                                     .m = memory.fp32_state(0),
                                     .v = memory.fp32_state(1),
                                     .p_bf16 = memory.bf16,
                                     .kept = kept},
                                    AdamWOptionsOf(optimizer_, step, step.of(piece)));
  }
};

// With at most one state an element; `kOptions` makes `kKernel`'s options.
template <auto kKernel, auto kOptions>
class OneStateRule final : public ElementwiseRule {
 public:
  using ElementwiseRule::ElementwiseRule;
  void Update(const UpdateStep& step, const UpdatePiece& piece,
              const PieceMemory& memory) const override {
    kKernel(piece.elements, memory.weights, memory.gradient, memory.states[0], memory.bf16,
            kOptions(optimizer_, step, step.of(piece)), TorchParallelFor);
  }
};

using SgdRule = OneStateRule<kernels::SgdCpu, SgdOptionsOf>;
using LionRule = OneStateRule<kernels::LionCpu, LionOptionsOf>;
using AdagradRule = OneStateRule<kernels::AdagradCpu, AdagradOptionsOf>;

}  // namespace

void AdamWStep(const OptimizerConfig& optimizer, const UpdateStep& step, const UpdatePiece& piece,
               const PieceMemory& memory) {
  const kernels::AdamWOptions options = AdamWOptionsOf(optimizer, step, step.of(piece));
  if (step.rounding.has_value()) {
    kernels::AdamWStochasticCpu(piece.elements, piece.flat, memory.weights, memory.gradient,
                                static_cast<BFloat16*>(memory.states[0].data),
                                static_cast<BFloat16*>(memory.states[1].data), memory.bf16, options,
                                *step.rounding, TorchParallelFor);
    return;
  }
  if (memory.states[0].dtype == DType::kBFloat16) {
    kernels::AdamWCpuBf16State(piece.elements, memory.weights, memory.gradient,
                               static_cast<BFloat16*>(memory.states[0].data),
                               static_cast<BFloat16*>(memory.states[1].data), memory.bf16, options,
                               TorchParallelFor);
    return;
  }
  kernels::AdamWCpu(piece.elements, memory.weights, memory.gradient, memory.fp32_state(0),
                    memory.fp32_state(1), memory.bf16, options, TorchParallelFor);
}

std::unique_ptr<UpdateRule> MakeElementwiseRule(const OptimizerConfig& optimizer) {
  switch (optimizer.kind) {
    case Kind::kSgd:
      return std::make_unique<SgdRule>(optimizer);
    case Kind::kLion:
      return std::make_unique<LionRule>(optimizer);
    case Kind::kAdagrad:
      return std::make_unique<AdagradRule>(optimizer);
    default:
      return std::make_unique<AdamRule>(optimizer);
  }
}

}  // namespace dtrain
