// The newest checkpoint that a run's records name, whatever has become of it.
#pragma once

#include <optional>
#include <string>

#include "checkpoint/restore/reader.h"

namespace dtrain {

// Reads rank 0's metrics. None: no save or restore is recorded.
std::optional<checkpoint::KnownSave> LastKnownSave(const std::string& run_dir);

}  // namespace dtrain
