#include "runtime/engine/adamw_update.h"

#include "kernels/adamw.h"

namespace dtrain {

std::vector<DecayRange> DecayRanges(const plan::ParamLayout& layout,
                                    const OptimizerConfig& optimizer) {
  std::vector<DecayRange> ranges;
  for (const plan::LayoutEntry& entry : layout.entries()) {
    const double decay = optimizer.WeightDecayFor(entry.name);
    const int64_t end = entry.offset + entry.elements;
    if (ranges.empty() || ranges.back().weight_decay != decay) {
      ranges.push_back({entry.offset, end, decay});
    }
    ranges.back().end = end;  // Gaps between entries hold zeros and stay zero.
  }
  return ranges;
}

std::vector<UpdatePiece> UpdatePieces(const std::vector<DecayRange>& ranges,
                                      const plan::OwnedRange& owned) {
  std::vector<UpdatePiece> pieces;
  for (const DecayRange& range : ranges) {
    const plan::FlatRange piece = plan::Intersect({range.begin, range.end}, owned.flat);
    if (piece.elements() > 0) {
      pieces.push_back({piece.begin, owned.local + piece.begin - owned.flat.begin, piece.elements(),
                        range.weight_decay});
    }
  }
  return pieces;
}

void AdamWUpdate(EngineState& state, const ReducedGradient& gradient,
                 const std::vector<UpdatePiece>& pieces, const OptimizerConfig& optimizer,
                 double learning_rate, double gradient_scale, int64_t update,
                 ParallelFor parallel_for) {
  float* const values = state.flat->values().mutable_data_ptr<float>();
  float* const exp_avg = state.exp_avg.mutable_data_ptr<float>();
  float* const exp_avg_sq = state.exp_avg_sq.mutable_data_ptr<float>();
  for (const UpdatePiece& piece : pieces) {
    const kernels::AdamWOptions options{.lr = learning_rate,
                                        .beta1 = optimizer.beta1,
                                        .beta2 = optimizer.beta2,
                                        .eps = optimizer.eps,
                                        .weight_decay = piece.weight_decay,
                                        .grad_scale = gradient_scale,
                                        .step = update};
    const float* const from = gradient.data + (gradient.by_shard ? piece.local : piece.flat);
    kernels::AdamWCpu(piece.elements, values + piece.flat, from, exp_avg + piece.local,
                      exp_avg_sq + piece.local, nullptr, options, parallel_for);
  }
}

}  // namespace dtrain
