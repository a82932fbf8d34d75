#include "runtime/optimizer/update_rule.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/engine/dtypes.h"
#include "runtime/engine/torch_pool.h"

namespace dtrain {

PieceMemory MemoryOf(const EngineState& state, const ReducedGradient& gradient,
                     const UpdatePiece& piece) {
  PieceMemory memory;
  std::byte* const value = state.value_at(piece.flat, piece.local);
  const DType dtype = state.flat->dtype();
  memory.weights = dtype == DType::kFloat32 ? reinterpret_cast<float*>(value)
                                            : state.master.mutable_data_ptr<float>() + piece.local;
  memory.bf16 = dtype == DType::kBFloat16 ? reinterpret_cast<BFloat16*>(value) : nullptr;
  memory.gradient = gradient.at(piece.flat, piece.local);
  for (size_t i = 0; i < state.slots.size(); ++i) {
    const at::Tensor& slot = state.slots[i].tensor;
    memory.states[i] = {static_cast<std::byte*>(slot.mutable_data_ptr()) +
                            piece.local * static_cast<int64_t>(slot.element_size()),
                        slot.scalar_type() == at::kFloat ? DType::kFloat32 : DType::kBFloat16};
  }
  return memory;
}

void UpdatePiecesBy(const UpdateRule& rule, const UpdateStep& step, const EngineState& state,
                    const ReducedGradient& gradient, absl::Span<const UpdatePiece> pieces) {
  for (const UpdatePiece& piece : pieces) {
    const PieceMemory memory = MemoryOf(state, gradient, piece);
    rule.Update(step, piece, memory);
    if (state.flat->dtype() == DType::kFloat16) {
      kernels::CopyCpu(piece.elements, {memory.weights},
                       {state.value_at(piece.flat, piece.local), DType::kFloat16},
                       TorchParallelFor);
    }
  }
}

absl::StatusOr<std::unique_ptr<UpdateRule>> MakeUpdateRule(const Config& config,
                                                           std::shared_ptr<const Optimizer> own,
                                                           const plan::ParamLayout& layout) {
  const OptimizerConfig& optimizer = config.optimizer();
  if (own != nullptr) {
    if (config.OriginOf("optimizer.type") != ConfigOrigin::kDefault) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "optimizer.type %s is given and the program brings its own optimizer, %s; remove the key",
          optimizer.name(), own->name()));
    }
    if (own->states().size() > kStatesMax) {
      return absl::InvalidArgumentError(
          absl::StrFormat("the program's optimizer %s keeps %d states; allowed: up to %d",
                          own->name(), own->states().size(), kStatesMax));
    }
    if (optimizer.bf16_states) {
      return absl::UnimplementedError(absl::StrFormat(
          "bf16.bf16_optimizer_states with the program's optimizer %s is not supported: its states "
          "are fp32",
          own->name()));
    }
    return MakeOwnRule(std::move(own), layout);
  }
  switch (optimizer.kind) {
    case OptimizerConfig::Kind::kLamb:
      return MakeLambRule(optimizer, layout);
    case OptimizerConfig::Kind::kMuon:
      return MakeMuonRule(optimizer, layout);
    default:
      return MakeElementwiseRule(optimizer);
  }
}

}  // namespace dtrain
