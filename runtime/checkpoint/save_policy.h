// When a run saves, and which of its checkpoints it keeps: what the configuration says, for the
// writer. Pure.
#pragma once

#include <cstdint>

#include "checkpoint/commit/retention.h"
#include "dtrain/config.h"

namespace dtrain {

// Whether a save is due behind `step`.
bool IsDue(const Config& config, int64_t step);

// Whether saves come due before the run ends, and so while it trains.
bool SavesOnTheWay(const Config& config);

checkpoint::Retention KeptCheckpoints(const Config& config);

}  // namespace dtrain
