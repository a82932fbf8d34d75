// Muon: hidden matrices by Newton-Schulz, everything else by AdamW.
#include <algorithm>
#include <utility>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "base/status.h"
#include "kernels/muon.h"
#include "runtime/engine/torch_pool.h"
#include "runtime/optimizer/adamw_step.h"
#include "runtime/optimizer/newton_schulz.h"
#include "runtime/optimizer/update_rule.h"

namespace dtrain {
namespace {

// Matrices are taken in rounds of as many as there are ranks: each rank orthogonalises one and
// hands it to the others.
class MuonRule final : public UpdateRule {
 public:
  MuonRule(const OptimizerConfig& optimizer, const plan::ParamLayout& layout)
      : optimizer_(optimizer), layout_(layout) {
    for (size_t i = 0; i < layout.entries().size(); ++i) {
      const plan::LayoutEntry& entry = layout.entries()[i];
      if (entry.elements > 0 && optimizer.SettingsFor(entry.name, entry.shape).orthogonal) {
        matrices_.push_back(i);
      }
    }
  }
  std::string name() const override { return optimizer_.name(); }
  std::vector<std::string> states() const override { return optimizer_.state_slots(); }
  bool by_parameter() const override { return true; }

  absl::Status Prepare(const WholeUpdate& update) override {
    const at::NoGradGuard no_grad;
    std::vector<std::vector<UpdatePiece>> pieces(layout_.entries().size());
    for (const std::vector<UpdatePiece>& bucket : update.pieces) {
      for (const UpdatePiece& piece : bucket) {
        pieces[static_cast<size_t>(piece.entry)].push_back(piece);
      }
    }
    const auto ranks = static_cast<size_t>(update.group.size());
    for (size_t first = 0; first < matrices_.size(); first += ranks) {
      DT_RETURN_IF_ERROR(Round(update, pieces, first, std::min(matrices_.size(), first + ranks)));
    }
    return absl::OkStatus();
  }

  void Update(const UpdateStep& step, const UpdatePiece& piece,
              const PieceMemory& memory) const override {
    if (!step.of(piece).orthogonal) {  // Else Prepare has done it.
      AdamWStep(step, piece, memory, false);
    }
  }

 private:
  // Matrices [first, last).
  absl::Status Round(const WholeUpdate& update, const std::vector<std::vector<UpdatePiece>>& pieces,
                     size_t first, size_t last) const {
    std::vector<at::Tensor> round;
    for (size_t i = first; i < last; ++i) {
      round.push_back(Direction(update, matrices_[i], pieces[matrices_[i]]));
    }
    if (update.state.shards != nullptr) {  // Each element is one rank's; the others add zeros.
      DT_RETURN_IF_ERROR(ForAll(round, [&](size_t, const comm::Buffer& buffer) {
        return update.group.AllReduce(buffer, comm::ReduceOp::kSum, {.name = "momentum of Muon"});
      }));
    }
    if (const auto mine = static_cast<size_t>(update.group.rank()); mine < round.size()) {
      round[mine] = NewtonSchulz(round[mine]);
    }
    DT_RETURN_IF_ERROR(ForAll(round, [&](size_t i, const comm::Buffer& buffer) {
      return update.group.Broadcast(buffer, static_cast<int>(i), {.name = "update of Muon"});
    }));
    for (size_t i = 0; i < round.size(); ++i) {
      Apply(update, round[i], matrices_[first + i], pieces[matrices_[first + i]]);
    }
    return absl::OkStatus();
  }

  // Starts a collective on each, then waits for all.
  template <class Start>
  static absl::Status ForAll(const std::vector<at::Tensor>& tensors, Start start) {
    std::vector<comm::Work> works;
    absl::Status status;
    for (size_t i = 0; i < tensors.size() && status.ok(); ++i) {
      auto work = start(
          i, comm::Buffer{tensors[i].mutable_data_ptr(), tensors[i].nbytes(), DType::kFloat32, {}});
      status = work.status();
      if (work.ok()) {
        works.push_back(*std::move(work));
      }
    }
    for (const comm::Work& work : works) {
      status.Update(work.Wait());
    }
    return status;
  }

  kernels::MuonOptions OptionsFor(const UpdateStep& step, const UpdatePiece& piece) const {
    return {.lr = step.of(piece).lr,
            .momentum = optimizer_.momentum,
            .weight_decay = step.of(piece).weight_decay,
            .grad_scale = step.gradient_scale,
            .grad_limit = step.gradient_limit};
  }

  // This rank's part of the momentum's direction, in the parameter's shape; zeros elsewhere.
  at::Tensor Direction(const WholeUpdate& update, size_t index,
                       const std::vector<UpdatePiece>& pieces) const {
    const plan::LayoutEntry& entry = layout_.entries()[index];
    const at::Tensor direction = at::zeros(entry.shape, at::TensorOptions(at::kFloat));
    for (const UpdatePiece& piece : pieces) {
      const PieceMemory memory = MemoryOf(update.state, update.gradient, piece);
      kernels::MuonDirectionCpu(piece.elements, memory.gradient, memory.fp32_state(0),
                                direction.mutable_data_ptr<float>() + (piece.flat - entry.offset),
                                OptionsFor(update.step, piece), TorchParallelFor);
    }
    return direction;
  }

  void Apply(const WholeUpdate& update, const at::Tensor& direction, size_t index,
             const std::vector<UpdatePiece>& pieces) const {
    for (const UpdatePiece& piece : pieces) {
      const PieceMemory memory = MemoryOf(update.state, update.gradient, piece);
      kernels::MuonApplyCpu(
          piece.elements, memory.weights,
          direction.const_data_ptr<float>() + (piece.flat - layout_.entries()[index].offset),
          memory.bf16, 1, OptionsFor(update.step, piece), TorchParallelFor);
    }
  }

  const OptimizerConfig optimizer_;
  const plan::ParamLayout& layout_;
  std::vector<size_t> matrices_;  // Entries.
};

}  // namespace

std::unique_ptr<UpdateRule> MakeMuonRule(const OptimizerConfig& optimizer,
                                         const plan::ParamLayout& layout) {
  return std::make_unique<MuonRule>(optimizer, layout);
}

}  // namespace dtrain
