#include "runtime/optimizer/device_rule.h"

#include <cstring>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/optimizer/step_options.h"

namespace dtrain {
namespace {

using Kind = OptimizerConfig::Kind;

// `S`: the kernels' scalars, whose first field is grad_scale.
template <class S>
class Rule : public DeviceRule {
 public:
  explicit Rule(const OptimizerConfig& optimizer) : optimizer_(optimizer) {}
  size_t scalar_bytes() const override { return sizeof(S); }
  size_t skip_offset() const override { return offsetof(S, skip); }
  void Scalars(const UpdateStep& step, const ParamSettings& settings, void* to) const override {
    static_assert(offsetof(S, grad_scale) == 0);
    const S scalars = Make(step, settings);
    std::memcpy(to, &scalars, sizeof(scalars));
  }

 protected:
  virtual S Make(const UpdateStep& step, const ParamSettings& settings) const = 0;
  static const S* Read(const void* scalars) { return static_cast<const S*>(scalars); }
  const OptimizerConfig optimizer_;
};

class AdamOnDevice final : public Rule<kernels::AdamWStepScalars> {
 public:
  using Rule::Rule;
  absl::Status Update(const kernels::CudaKernelTable& kernels, const UpdatePiece& piece,
                      const PieceMemory& memory, const void* scalars,
                      CudaStream stream) const override {
    if (memory.states[0].dtype == DType::kBFloat16) {
      return kernels.adamw_bf16_state(piece.elements, memory.weights, memory.gradient,
                                      static_cast<BFloat16*>(memory.states[0].data),
                                      static_cast<BFloat16*>(memory.states[1].data), memory.bf16,
                                      Read(scalars), stream);
    }
    return kernels.adamw(piece.elements, memory.weights, memory.gradient, memory.fp32_state(0),
                         memory.fp32_state(1), memory.bf16, Read(scalars), stream);
  }

 private:
  kernels::AdamWStepScalars Make(const UpdateStep& step,
                                 const ParamSettings& settings) const override {
    return kernels::MakeAdamWStepScalars(AdamWOptionsOf(optimizer_, step, settings));
  }
};

// The scalars of a step that a group's kernel reads when it rounds stochastically.
struct StochasticScalars {
  kernels::AdamWStepScalars adamw;
  kernels::PhiloxStream rounding;
};

class StochasticAdamOnDevice final : public DeviceRule {
 public:
  explicit StochasticAdamOnDevice(const OptimizerConfig& optimizer) : optimizer_(optimizer) {}
  size_t scalar_bytes() const override { return sizeof(StochasticScalars); }
  size_t skip_offset() const override {
    static_assert(offsetof(StochasticScalars, adamw) == 0);
    return offsetof(kernels::AdamWStepScalars, skip);
  }
  void Scalars(const UpdateStep& step, const ParamSettings& settings, void* to) const override {
    const StochasticScalars scalars{
        kernels::MakeAdamWStepScalars(AdamWOptionsOf(optimizer_, step, settings)),
        step.rounding.value()};
    std::memcpy(to, &scalars, sizeof(scalars));
  }
  absl::Status Update(const kernels::CudaKernelTable& kernels, const UpdatePiece& piece,
                      const PieceMemory& memory, const void* scalars,
                      CudaStream stream) const override {
    const auto* const read = static_cast<const StochasticScalars*>(scalars);
    return kernels.adamw_stochastic(piece.elements, piece.flat, memory.weights, memory.gradient,
                                    static_cast<BFloat16*>(memory.states[0].data),
                                    static_cast<BFloat16*>(memory.states[1].data), memory.bf16,
                                    &read->adamw, &read->rounding, stream);
  }

 private:
  const OptimizerConfig optimizer_;
};

// With at most one state an element: alike but for the table's entry and what it reads.
template <class S, auto kKernel, auto kScalars, auto kOptions>
class OneStateOnDevice final : public Rule<S> {
 public:
  using Rule<S>::Rule;
  absl::Status Update(const kernels::CudaKernelTable& kernels, const UpdatePiece& piece,
                      const PieceMemory& memory, const void* scalars,
                      CudaStream stream) const override {
    return (kernels.*kKernel)(piece.elements, memory.weights, memory.gradient, memory.states[0],
                              memory.bf16, Rule<S>::Read(scalars), stream);
  }

 private:
  S Make(const UpdateStep& step, const ParamSettings& settings) const override {
    return kScalars(kOptions(this->optimizer_, step, settings));
  }
};

using Table = kernels::CudaKernelTable;
using SgdOnDevice = OneStateOnDevice<kernels::SgdStepScalars, &Table::sgd,
                                     kernels::MakeSgdStepScalars, SgdOptionsOf>;
using LionOnDevice = OneStateOnDevice<kernels::LionStepScalars, &Table::lion,
                                      kernels::MakeLionStepScalars, LionOptionsOf>;
using AdagradOnDevice = OneStateOnDevice<kernels::AdagradStepScalars, &Table::adagrad,
                                         kernels::MakeAdagradStepScalars, AdagradOptionsOf>;

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceRule>> MakeDeviceRule(const Config& config,
                                                           const UpdateRule& rule,
                                                           const plan::ParamLayout& layout) {
  const OptimizerConfig& optimizer = config.optimizer();
  if (rule.name() == optimizer.name()) {  // Any other is the program's own rule.
    switch (optimizer.kind) {
      case Kind::kAdamW:
      case Kind::kAdam:
        if (config.stochastic_rounding()) {
          return std::make_unique<StochasticAdamOnDevice>(optimizer);
        }
        return std::make_unique<AdamOnDevice>(optimizer);
      case Kind::kSgd:
        return std::make_unique<SgdOnDevice>(optimizer);
      case Kind::kLion:
        return std::make_unique<LionOnDevice>(optimizer);
      case Kind::kAdagrad:
        return std::make_unique<AdagradOnDevice>(optimizer);
      case Kind::kLamb:
        return MakeLambOnDevice(optimizer, layout);
      case Kind::kMuon:
        return MakeMuonOnDevice(optimizer, layout);
    }
  }
  return absl::UnimplementedError(absl::StrFormat(
      "optimizer %s of the program has no CUDA form; the host can update by it", rule.name()));
}

absl::Status UpdatePiecesOnDevice(const DeviceRule& rule, const kernels::CudaKernelTable& kernels,
                                  const EngineState& state, const ReducedGradient& gradient,
                                  absl::Span<const UpdatePiece> pieces, const std::byte* scalars,
                                  CudaStream stream) {
  for (const UpdatePiece& piece : pieces) {
    const PieceMemory memory = MemoryOf(state, gradient, piece);
    DT_RETURN_IF_ERROR(
        rule.Update(kernels, piece, memory,
                    scalars + static_cast<size_t>(piece.settings) * rule.scalar_bytes(), stream));
    if (state.flat->dtype() == DType::kFloat16) {
      DT_RETURN_IF_ERROR(kernels.copy(piece.elements, {memory.weights},
                                      {state.value_at(piece.flat, piece.local), DType::kFloat16},
                                      stream));
    }
  }
  return absl::OkStatus();
}

}  // namespace dtrain
