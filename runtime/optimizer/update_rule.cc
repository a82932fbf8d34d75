#include "runtime/optimizer/update_rule.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "runtime/model/dtypes.h"
#include "runtime/model/torch_pool.h"
#include "runtime/optimizer/state_stream.h"
#include "runtime/optimizer/update_exchange.h"

namespace dtrain {

namespace {

// `state_at(i)`: the piece's place in slot i, then in the master.
template <class StateAt>
PieceMemory MemoryBy(const EngineState& state, const ReducedGradient& gradient,
                     const UpdatePiece& piece, StateAt state_at) {
  PieceMemory memory;
  std::byte* const value = state.value_at(piece.flat, piece.local);
  const DType dtype = state.flat->dtype();
  memory.weights = reinterpret_cast<float*>(
      dtype == DType::kFloat32 ? value : state_at(state.optimizer.slots.size()));
  memory.bf16 = dtype == DType::kBFloat16 ? reinterpret_cast<BFloat16*>(value) : nullptr;
  memory.fp16 = dtype == DType::kFloat16 ? reinterpret_cast<Float16*>(value) : nullptr;
  memory.gradient = gradient.at(piece.flat, piece.local);
  for (size_t i = 0; i < state.optimizer.slots.size(); ++i) {
    const bool wide = state.optimizer.slots[i].tensor.scalar_type() == at::kFloat;
    memory.states[i] = {state_at(i), wide ? DType::kFloat32 : DType::kBFloat16};
  }
  return memory;
}

// Elements [begin, begin + elements) of the piece.
UpdatePiece PartOf(const UpdatePiece& piece, int64_t begin, int64_t elements) {
  UpdatePiece part = piece;
  part.flat += begin;
  part.local += begin;
  part.elements = elements;
  return part;
}

// The memory of a part of the piece from its element `begin` on.
PieceMemory PartOf(const PieceMemory& memory, int64_t begin, const float* gradient) {
  PieceMemory part = memory;
  part.weights += begin;
  part.gradient = gradient;
  part.bf16 += part.bf16 == nullptr ? 0 : begin;
  part.fp16 += part.fp16 == nullptr ? 0 : begin;
  for (kernels::MutableFlat& state : part.states) {
    if (state.data != nullptr) {
      state.data = static_cast<std::byte*>(state.data) +
                   begin * static_cast<int64_t>(DTypeBytes(state.dtype));
    }
  }
  return part;
}

const at::Tensor& StateTensor(const EngineState& state, size_t index) {
  return index < state.optimizer.slots.size() ? state.optimizer.slots[index].tensor
                                              : state.optimizer.master;
}

}  // namespace

PieceMemory MemoryOf(const EngineState& state, const ReducedGradient& gradient,
                     const UpdatePiece& piece) {
  return MemoryBy(state, gradient, piece, [&](size_t index) {
    const at::Tensor& tensor = StateTensor(state, index);
    return static_cast<std::byte*>(tensor.mutable_data_ptr()) +
           piece.local * static_cast<int64_t>(tensor.element_size());
  });
}

PieceMemory NearMemoryOf(const EngineState& state, const ReducedGradient& gradient,
                         const UpdatePiece& piece, int64_t local,
                         absl::Span<std::byte* const> near) {
  return MemoryBy(state, gradient, piece, [&](size_t index) {
    const auto width = static_cast<int64_t>(StateTensor(state, index).element_size());
    return near[index] + (piece.local - local) * width;
  });
}

absl::Status WholeUpdate::ForPieces(absl::Span<const std::vector<UpdatePiece>> lists,
                                    Changes changes, Body body) const {
  if (exchange != nullptr) {
    return exchange->Run(
        exchange->Cut(lists), gradient, changes,
        [&](const UpdatePiece& piece, const PieceMemory& memory) {
          body(piece, memory);
          if (changes == Changes::kValues) {
            RoundToFp16(piece, memory);  // All of a piece's values go back.
          }
        },
        [](int /*bucket*/) {});
  }
  if (stream != nullptr) {
    return stream->Run(stream->Cut(lists), [&](const StateChunk& chunk, auto near) {
      for (const UpdatePiece& piece : chunk.pieces) {
        body(piece, NearMemoryOf(state, gradient, piece, chunk.local, near));
      }
    });
  }
  for (const std::vector<UpdatePiece>& list : lists) {
    for (const UpdatePiece& piece : list) {
      body(piece, MemoryOf(state, gradient, piece));
    }
  }
  return absl::OkStatus();
}

kernels::WeightSums UpdateRule::UpdateRounded(const UpdateStep& /*step*/,
                                              const UpdatePiece& /*piece*/,
                                              const PieceMemory& /*memory*/,
                                              const kernels::KeptGradient& /*kept*/) const {
  DT_CHECK(false) << name() << " does not round gradients";
  return {};
}

void RoundToFp16(const UpdatePiece& piece, const PieceMemory& memory) {
  if (memory.fp16 != nullptr) {
    kernels::CopyCpu(piece.elements, {memory.weights}, {memory.fp16, DType::kFloat16},
                     TorchParallelFor);
  }
}

void UpdatePieceBy(const UpdateRule& rule, const UpdateStep& step, const UpdatePiece& piece,
                   const PieceMemory& memory) {
  rule.Update(step, piece, memory);
  RoundToFp16(piece, memory);
}

void UpdatePieceInParts(const EngineState& state, const UpdateRule& rule, const UpdateStep& step,
                        const UpdatePiece& piece, const PieceMemory& memory) {
  if (!state.hooks.update_piece) {
    UpdatePieceBy(rule, step, piece, memory);
    return;
  }
  const auto by = [&](int64_t begin, int64_t elements, const float* gradient) {
    UpdatePieceBy(rule, step, PartOf(piece, begin, elements), PartOf(memory, begin, gradient));
  };
  const auto rounded = [&](int64_t begin, int64_t elements, const kernels::KeptGradient& kept) {
    const UpdatePiece part = PartOf(piece, begin, elements);
    const PieceMemory part_memory = PartOf(memory, begin, memory.gradient + begin);
    const kernels::WeightSums sums = rule.UpdateRounded(step, part, part_memory, kept);
    RoundToFp16(part, part_memory);
    return sums;
  };
  state.hooks.update_piece(piece, memory.gradient,
                           {.by = by, .rounds = rule.rounds(step, memory), .rounded = rounded});
}

void UpdatePiecesBy(const UpdateRule& rule, const UpdateStep& step, const EngineState& state,
                    const ReducedGradient& gradient, absl::Span<const UpdatePiece> pieces) {
  for (const UpdatePiece& piece : pieces) {
    UpdatePieceInParts(state, rule, step, piece, MemoryOf(state, gradient, piece));
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
