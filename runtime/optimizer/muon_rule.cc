// Muon: hidden matrices by Newton-Schulz, everything else by AdamW.
#include <algorithm>
#include <utility>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "base/status.h"
#include "kernels/optimizer/muon.h"
#include "runtime/model/torch_pool.h"
#include "runtime/optimizer/adamw_step.h"
#include "runtime/optimizer/newton_schulz.h"
#include "runtime/optimizer/step_options.h"
#include "runtime/optimizer/update_rule.h"

namespace dtrain {
namespace {

// Matrices are taken in rounds of as many as there are ranks: each rank orthogonalises one and
// hands it to the others.
class MuonRule final : public UpdateRule {
 public:
  MuonRule(const OptimizerConfig& optimizer, const plan::ParamLayout& layout)
      : optimizer_(optimizer), layout_(layout), matrices_(OrthogonalEntries(optimizer, layout)) {}
  std::string name() const override { return optimizer_.name(); }
  std::vector<std::string> states() const override { return optimizer_.state_slots(); }
  bool by_parameter() const override { return true; }

  bool updates(const ParamSettings& settings) const override { return !settings.orthogonal; }

  absl::Status Prepare(const WholeUpdate& update) override {
    const at::NoGradGuard no_grad;
    Pieces pieces(layout_.entries().size());
    for (const std::vector<UpdatePiece>& bucket : update.pieces) {
      for (const UpdatePiece& piece : bucket) {
        pieces[static_cast<size_t>(piece.entry)].push_back(piece);
      }
    }
    const auto ranks = static_cast<size_t>(update.group.size());
    for (size_t first = 0; first < matrices_.size(); first += ranks) {
      const size_t last = std::min(matrices_.size(), first + ranks);
      Pieces of_round;
      for (size_t i = first; i < last; ++i) {
        of_round.push_back(std::move(pieces[matrices_[i]]));
      }
      DT_RETURN_IF_ERROR(Round(update, of_round, first));
    }
    return absl::OkStatus();
  }

  void Update(const UpdateStep& step, const UpdatePiece& piece,
              const PieceMemory& memory) const override {
    if (updates(step.of(piece))) {
      AdamWStep(optimizer_, step, piece, memory);
    }
  }

 private:
  // Lists of what this rank owns, one a parameter.
  using Pieces = std::vector<std::vector<UpdatePiece>>;

  // Orthogonalizes the matrices from `first` on, one for each list of pieces.
  absl::Status Round(const WholeUpdate& update, const Pieces& pieces, size_t first) const {
    // This rank's parts of the momenta's directions, in the parameters' shapes; zeros elsewhere.
    std::vector<at::Tensor> round;
    for (size_t i = 0; i < pieces.size(); ++i) {
      round.push_back(
          at::zeros(layout_.entries()[matrices_[first + i]].shape, at::TensorOptions(at::kFloat)));
    }
    const auto place = [&](const UpdatePiece& piece) {
      const auto entry = static_cast<size_t>(piece.entry);
      const size_t i = static_cast<size_t>(
          std::lower_bound(matrices_.begin(), matrices_.end(), entry) - matrices_.begin());
      return round[i - first].mutable_data_ptr<float>() +
             (piece.flat - layout_.entries()[entry].offset);
    };
    DT_RETURN_IF_ERROR(update.ForPieces(
        pieces, Changes::kStates, [&](const UpdatePiece& piece, const PieceMemory& memory) {
          kernels::MuonDirectionCpu(piece.elements, memory.gradient, memory.fp32_state(0),
                                    place(piece), OptionsFor(update.step, piece), TorchParallelFor);
        }));
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
    return update.ForPieces(
        pieces, Changes::kValues, [&](const UpdatePiece& piece, const PieceMemory& memory) {
          kernels::MuonApplyCpu(piece.elements, memory.weights, place(piece), memory.bf16, 1,
                                OptionsFor(update.step, piece), TorchParallelFor);
        });
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
    return MuonOptionsOf(optimizer_, step, step.of(piece));
  }

  const OptimizerConfig optimizer_;
  const plan::ParamLayout& layout_;
  const std::vector<size_t> matrices_;  // Entries, ascending.
};

}  // namespace

std::vector<size_t> OrthogonalEntries(const OptimizerConfig& optimizer,
                                      const plan::ParamLayout& layout) {
  std::vector<size_t> matrices;
  for (size_t i = 0; i < layout.entries().size(); ++i) {
    const plan::LayoutEntry& entry = layout.entries()[i];
    if (entry.elements > 0 && optimizer.SettingsFor(entry.name, entry.shape).orthogonal) {
      matrices.push_back(i);
    }
  }
  return matrices;
}

std::unique_ptr<UpdateRule> MakeMuonRule(const OptimizerConfig& optimizer,
                                         const plan::ParamLayout& layout) {
  return std::make_unique<MuonRule>(optimizer, layout);
}

}  // namespace dtrain
