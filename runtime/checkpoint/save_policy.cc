#include "runtime/checkpoint/save_policy.h"

namespace dtrain {

bool IsDue(const Config& config, int64_t step) {
  const int64_t interval = config.checkpoint_interval();
  return config.checkpoint_continuous() || (interval > 0 && step % interval == 0);
}

bool SavesOnTheWay(const Config& config) {
  return config.checkpoint_continuous() || config.checkpoint_interval() > 0;
}

checkpoint::Retention KeptCheckpoints(const Config& config) {
  const BestCheckpointsConfig best = config.checkpoint_best();
  return {.newest = static_cast<int>(config.checkpoint_keep()),
          .every = config.checkpoint_keep_every(),
          .best = static_cast<int>(best.count),
          .metric = best.metric,
          .larger_is_better = best.larger_is_better};
}

}  // namespace dtrain
