// When a run saves, which of its checkpoints it keeps, and how saves end it. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "checkpoint/commit/retention.h"
#include "dtrain/config.h"

namespace dtrain {

// Whether a save is due behind `step`.
bool IsDue(const Config& config, int64_t step);

// Whether saves come due before the run ends, and so while it trains.
bool SavesOnTheWay(const Config& config);

checkpoint::Retention KeptCheckpoints(const Config& config);

// The end of a job whose run directory another one has taken, as `status` of a save says.
absl::Status Fenced(const absl::Status& status);

// The end of a job that was stopped: Cancelled if its last step is saved in `folder`, else an error
// that is temporary, whatever kept the save from it, and the host's own where a full disk, one that
// fails or one that may not be written did. `stop`: why and behind which step. `saved`: how its
// save ended.
absl::Status Stopped(const std::string& stop, const absl::Status& saved, const std::string& folder);

}  // namespace dtrain
