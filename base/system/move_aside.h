// Makes room for a new run without losing the old one. Called by one process at a time for a run
// directory.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace dtrain {

// The files that MoveRunAside leaves in place.
enum class Leave {
  kNothing,
  // logs/ and events*.jsonl, into which an agent already writes. For a program started by the
  // launcher that has --fresh on its own command line.
  kAgentFiles,
};

// Renames the run directory `path` to the first of `path`.old-1, .old-2, ... that is free, and logs
// it. Does nothing when `path` holds no run (no config.json).
absl::Status MoveRunAside(const std::string& path, Leave leave = Leave::kNothing);

}  // namespace dtrain
