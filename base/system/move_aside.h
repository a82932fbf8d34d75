// Makes room for a new run without losing the old one.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace dtrain {

// What MoveRunAside leaves in its place.
enum class Leave {
  kNothing,
  // logs/ and events*.jsonl, into which an agent writes already: as where a script that the
  // launcher starts, and not the launcher's own command, has the --fresh.
  kAgentFiles,
};

// Renames the run directory `path` to the first of `path`.old-1, .old-2, ... that is free, and says
// so on the log. Does nothing when `path` holds no run (no config.json).
absl::Status MoveRunAside(const std::string& path, Leave leave = Leave::kNothing);

}  // namespace dtrain
