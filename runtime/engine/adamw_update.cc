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

void AdamWUpdate(EngineState& state, const std::vector<DecayRange>& ranges,
                 const OptimizerConfig& optimizer, double learning_rate, double gradient_scale,
                 int64_t update, ParallelFor parallel_for) {
  float* const values = state.flat->values().mutable_data_ptr<float>();
  const float* const gradients = state.flat->gradients().const_data_ptr<float>();
  float* const exp_avg = state.exp_avg.mutable_data_ptr<float>();
  float* const exp_avg_sq = state.exp_avg_sq.mutable_data_ptr<float>();
  for (const DecayRange& range : ranges) {
    const kernels::AdamWOptions options{.lr = learning_rate,
                                        .beta1 = optimizer.beta1,
                                        .beta2 = optimizer.beta2,
                                        .eps = optimizer.eps,
                                        .weight_decay = range.weight_decay,
                                        .grad_scale = gradient_scale,
                                        .step = update};
    kernels::AdamWCpu(range.end - range.begin, values + range.begin, gradients + range.begin,
                      exp_avg + range.begin, exp_avg_sq + range.begin, nullptr, options,
                      parallel_for);
  }
}

}  // namespace dtrain
