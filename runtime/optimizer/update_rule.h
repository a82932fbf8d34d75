// The update that an optimizer makes to the elements that a rank owns. Each kind of optimizer has
// its rule; the engine calls Prepare once a step, then Update for every piece, bucket by bucket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/numeric/float16.h"
#include "comm/group.h"
#include "dtrain/optimizer.h"
#include "kernels/flat.h"
#include "kernels/layers/philox.h"
#include "kernels/optimizer/adamw_rounded.h"
#include "runtime/gradients/gradient_sync.h"
#include "runtime/optimizer/engine_state.h"
#include "runtime/optimizer/update_pieces.h"

namespace dtrain {

// One step's numbers.
struct UpdateStep {
  int64_t update = 1;         // From 1.
  double gradient_scale = 1;  // Unscales and clips.
  double gradient_limit = 0;  // Largest magnitude of an element after that; 0: none.
  // Random bits that bf16 states are rounded with, by place in the layout; none: to nearest.
  std::optional<kernels::PhiloxStream> rounding = {};
  std::vector<ParamSettings> settings;  // By UpdatePiece::settings, with the schedule applied.

  const ParamSettings& of(const UpdatePiece& piece) const {
    return settings[static_cast<size_t>(piece.settings)];
  }
};

constexpr size_t kStatesMax = 8;

// The addresses of a piece's numbers.
struct PieceMemory {
  float* weights = nullptr;  // Values in fp32, or the master of others.
  const float* gradient = nullptr;
  BFloat16* bf16 = nullptr;  // Values in bf16, to be rounded from the weights.
  Float16* fp16 = nullptr;   // Values in fp16: UpdatePieceBy rounds them, no rule does.
  kernels::MutableFlat states[kStatesMax] = {};

  float* fp32_state(size_t index) const { return static_cast<float*>(states[index].data); }
};
PieceMemory MemoryOf(const EngineState& state, const ReducedGradient& gradient,
                     const UpdatePiece& piece);

// The same for states in a far tier, whose near copies of the elements from `local` on are `near`,
// in the order of the slots, then the master.
PieceMemory NearMemoryOf(const EngineState& state, const ReducedGradient& gradient,
                         const UpdatePiece& piece, int64_t local,
                         absl::Span<std::byte* const> near);

class StateStream;
class UpdateExchange;

// The changes of a walk over pieces: their states, or the weights and their bf16 values too.
enum class Changes { kStates, kValues };

// Everything of a step, for rules that look beyond elements.
struct WholeUpdate {
  comm::Group& group;
  const EngineState& state;
  ReducedGradient gradient;
  absl::Span<const std::vector<UpdatePiece>> pieces;
  const UpdateStep& step;
  StateStream* stream = nullptr;       // Reads and writes offloaded states.
  UpdateExchange* exchange = nullptr;  // With a GPU, whose weights are updated on the host.

  // Calls `body` for each piece in order, in parts where states are offloaded; what it leaves in
  // them stays, of `changes`. REQUIRES: the pieces ascend by `local`.
  using Body = absl::FunctionRef<void(const UpdatePiece& piece, const PieceMemory& memory)>;
  absl::Status ForPieces(absl::Span<const std::vector<UpdatePiece>> lists, Changes changes,
                         Body body) const;
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual std::string name() const = 0;  // Its name in checkpoints.
  virtual std::vector<std::string> states() const = 0;
  virtual float first_state() const { return 0; }      // The initial value of states.
  virtual bool by_parameter() const { return false; }  // Pieces must not join parameters.
  // Whether pieces of these settings are left to Update; else Prepare has done it all.
  virtual bool updates(const ParamSettings& /*settings*/) const { return true; }
  // Collective.
  virtual absl::Status Prepare(const WholeUpdate& /*update*/) { return absl::OkStatus(); }
  virtual void Update(const UpdateStep& step, const UpdatePiece& piece,
                      const PieceMemory& memory) const = 0;
  // Whether UpdateRounded takes pieces with such memory.
  virtual bool rounds(const UpdateStep& /*step*/, const PieceMemory& /*memory*/) const {
    return false;
  }
  // Updates by the gradient rounded to bf16, which it keeps, in one pass and in the calling thread.
  // Gives sums of PieceMemory::weights where it keeps one. REQUIRES: rounds.
  virtual kernels::WeightSums UpdateRounded(const UpdateStep& step, const UpdatePiece& piece,
                                            const PieceMemory& memory,
                                            const kernels::KeptGradient& kept) const;
};

// By the configuration, or the program's own. InvalidArgument: both are given, or the program's
// keeps more than kStatesMax states. `layout` must outlive the rule.
absl::StatusOr<std::unique_ptr<UpdateRule>> MakeUpdateRule(const Config& config,
                                                           std::shared_ptr<const Optimizer> own,
                                                           const plan::ParamLayout& layout);

// The parts of MakeUpdateRule.
std::unique_ptr<UpdateRule> MakeElementwiseRule(const OptimizerConfig& optimizer);
std::unique_ptr<UpdateRule> MakeLambRule(const OptimizerConfig& optimizer,
                                         const plan::ParamLayout& layout);
std::unique_ptr<UpdateRule> MakeMuonRule(const OptimizerConfig& optimizer,
                                         const plan::ParamLayout& layout);
// The layout's entries that Muon orthogonalises, ascending.
std::vector<size_t> OrthogonalEntries(const OptimizerConfig& optimizer,
                                      const plan::ParamLayout& layout);
std::unique_ptr<UpdateRule> MakeOwnRule(std::shared_ptr<const Optimizer> own,
                                        const plan::ParamLayout& layout);

// Rounds what is kept in fp16 from its master; else nothing.
void RoundToFp16(const UpdatePiece& piece, const PieceMemory& memory);
// Updates a piece and rounds what is kept in fp16.
void UpdatePieceBy(const UpdateRule& rule, const UpdateStep& step, const UpdatePiece& piece,
                   const PieceMemory& memory);
// The same, by way of StepHooks::update_piece where it is set.
void UpdatePieceInParts(const EngineState& state, const UpdateRule& rule, const UpdateStep& step,
                        const UpdatePiece& piece, const PieceMemory& memory);
// Near states: all pieces in parts.
void UpdatePiecesBy(const UpdateRule& rule, const UpdateStep& step, const EngineState& state,
                    const ReducedGradient& gradient, absl::Span<const UpdatePiece> pieces);

}  // namespace dtrain
