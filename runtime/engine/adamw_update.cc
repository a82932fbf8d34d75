#include "runtime/engine/adamw_update.h"

#include <cstddef>

#include "kernels/adamw.h"
#include "kernels/flat.h"

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
                 const plan::Betas& betas, double learning_rate, double gradient_scale,
                 int64_t update, ParallelFor parallel_for) {
  const DType dtype = state.flat->dtype();
  float* const exp_avg = state.exp_avg.mutable_data_ptr<float>();
  float* const exp_avg_sq = state.exp_avg_sq.mutable_data_ptr<float>();
  for (const UpdatePiece& piece : pieces) {
    const kernels::AdamWOptions options{.lr = learning_rate,
                                        .beta1 = betas.first,
                                        .beta2 = betas.second,
                                        .eps = optimizer.eps,
                                        .weight_decay = piece.weight_decay,
                                        .grad_scale = gradient_scale,
                                        .step = update};
    const float* const from = gradient.at(piece.flat, piece.local);
    std::byte* const value = state.value_at(piece.flat, piece.local);
    const bool mixed = dtype != DType::kFloat32;
    float* const weights = mixed ? state.master.mutable_data_ptr<float>() + piece.local
                                 : reinterpret_cast<float*>(value);
    auto* const bf16 = dtype == DType::kBFloat16 ? reinterpret_cast<BFloat16*>(value) : nullptr;
    kernels::AdamWCpu(piece.elements, weights, from, exp_avg + piece.local,
                      exp_avg_sq + piece.local, bf16, options, parallel_for);
    if (dtype == DType::kFloat16) {
      kernels::CopyCpu(piece.elements, {weights}, {value, dtype}, parallel_for);
    }
  }
}

}  // namespace dtrain
