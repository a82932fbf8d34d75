#include "runtime/plan/layout/zero_policy.h"

namespace dtrain::plan {

ZeroPolicy ZeroPolicy::Of(const Config& config) {
  const int stage = config.zero_stage();
  return {.shards_states = stage >= 1,
          .shards_gradients = stage >= 2,
          .shards_weights = stage == 3,
          .owns_whole_blocks = config.deterministic() || stage == 3 ||
                               config.quantized_gradients() ||
                               config.optimizer().kind == OptimizerConfig::Kind::kLamb};
}

}  // namespace dtrain::plan
