// Makes room for a new run without losing the old one, and remembers that it is to begin anew.
// Called by one process at a time for a run directory.
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

// Notes in the run directory, which is there, that its run begins anew whatever checkpoint.dir
// holds. An attempt can end before its ranks have begun there; the next one begins anew then.
absl::Status NoteFreshStart(const std::string& path);
// Whether that was noted, and no attempt has begun since.
bool IsFreshStartDue(const std::string& path);
// An attempt has begun, so that later ones go on from it. OK if nothing was noted.
absl::Status EndFreshStart(const std::string& path);

}  // namespace dtrain
