// LAMB: moments of all pieces, norms of whole parameters over the ranks, then the weights.
#include <utility>

#include "base/status.h"
#include "kernels/optimizer/grad_norm.h"
#include "kernels/optimizer/lamb.h"
#include "runtime/model/torch_pool.h"
#include "runtime/optimizer/lamb_blocks.h"
#include "runtime/optimizer/step_options.h"
#include "runtime/optimizer/update_rule.h"

namespace dtrain {
namespace {

// Sums of a parameter come from whoever owns its blocks and are added as a tree over them, so that
// they do not depend on how blocks are shared out (kernels/optimizer/grad_norm.h).
class LambRule final : public UpdateRule {
 public:
  LambRule(const OptimizerConfig& optimizer, const plan::ParamLayout& layout)
      : optimizer_(optimizer), layout_(layout), blocks_(layout) {}
  std::string name() const override { return optimizer_.name(); }
  std::vector<std::string> states() const override { return optimizer_.state_slots(); }
  bool by_parameter() const override { return true; }

  absl::Status Prepare(const WholeUpdate& update) override {
    // Sums of weights, then sums of updates.
    std::vector<double> sums(static_cast<size_t>(2 * blocks_.total()), 0.0);
    DT_RETURN_IF_ERROR(update.ForPieces(update.pieces, Changes::kStates,
                                        [&](const UpdatePiece& piece, const PieceMemory& memory) {
                                          AddMoments(update, piece, memory, sums);
                                        }));
    if (update.state.shards != nullptr) {  // Each rank has the sums of its own pieces.
      DT_ASSIGN_OR_RETURN(
          const comm::Work work,
          update.group.AllReduce({sums.data(), sums.size() * sizeof(double), DType::kFloat64, {}},
                                 comm::ReduceOp::kSum,
                                 {.name = "norms of parameters", .caller_waits = true}));
      DT_RETURN_IF_ERROR(work.Wait());
    }
    trust_.clear();
    for (size_t i = 0; i < layout_.entries().size(); ++i) {
      const int64_t count = blocks_.count(i);
      double* const weights = sums.data() + blocks_.first(i);
      double* const updates = weights + blocks_.total();
      trust_.push_back(
          kernels::LambTrust({kernels::TreeSum(weights, count), kernels::TreeSum(updates, count)},
                             LambOptionsOf(optimizer_, update.step, {})));
    }
    return absl::OkStatus();
  }

  void Update(const UpdateStep& step, const UpdatePiece& piece,
              const PieceMemory& memory) const override {
    kernels::LambApplyCpu(
        piece.elements, memory.weights, memory.fp32_state(0), memory.fp32_state(1), memory.bf16,
        trust_[static_cast<size_t>(piece.entry)], OptionsFor(step, piece), TorchParallelFor);
  }

 private:
  kernels::LambOptions OptionsFor(const UpdateStep& step, const UpdatePiece& piece) const {
    return LambOptionsOf(optimizer_, step, step.of(piece));
  }
  // A block that a bucket's end cuts is summed in two pieces: added, not stored.
  void AddMoments(const WholeUpdate& update, const UpdatePiece& piece, const PieceMemory& memory,
                  std::vector<double>& sums) {
    block_sums_.resize(static_cast<size_t>(kernels::NormBlocks(piece.flat, piece.elements)));
    kernels::LambMomentsCpu(piece.elements, piece.flat, memory.weights, memory.gradient,
                            memory.fp32_state(0), memory.fp32_state(1), block_sums_.data(),
                            OptionsFor(update.step, piece), TorchParallelFor);
    const int64_t first = blocks_.of(piece);
    for (size_t block = 0; block < block_sums_.size(); ++block) {
      sums[static_cast<size_t>(first) + block] += block_sums_[block].weights;
      sums[static_cast<size_t>(first + blocks_.total()) + block] += block_sums_[block].updates;
    }
  }

  const OptimizerConfig optimizer_;
  const plan::ParamLayout& layout_;
  const LambBlocks blocks_;
  std::vector<kernels::LambSums> block_sums_;
  std::vector<double> trust_;  // By entry, of this step.
};

}  // namespace

std::unique_ptr<UpdateRule> MakeLambRule(const OptimizerConfig& optimizer,
                                         const plan::ParamLayout& layout) {
  return std::make_unique<LambRule>(optimizer, layout);
}

}  // namespace dtrain
