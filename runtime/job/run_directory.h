// The run directory: one folder a run, made or resumed by rank 0.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json.h"
#include "dtrain/config.h"

namespace dtrain {

struct RunDirectoryOptions {
  std::string path;
  std::string run_id;      // "" : the one of the run that is there, else a new random one.
  bool fresh = false;      // Move an existing run to PATH.old-N first.
  bool has_agent = false;  // An agent writes logs/ and events.jsonl there already.
  std::vector<std::string> accept_changes =
      {};  // Keys and sections (plan/config/accepted_changes.h).
  int attempt = 0;
  int world_size = 1;
  Json versions;  // Shown in run.json.
};

struct RunDirectory {
  std::string path;
  std::string run_id;
  bool resumed = false;
  // The changes of all resumes, in order: {"key", "was", "now", "attempt", "time"}.
  Json accepted_changes = Json::array();
  std::vector<std::string> accepted_now;  // Those that this one made: "KEY was X, now Y".
};

// Only rank 0 calls it. Writes config.json and run.json. FailedPrecondition when the directory
// holds a run of another configuration (names the first key that differs and is not accepted);
// InvalidArgument for a key that cannot be accepted; PermissionDenied when it is not writable.
// Nothing of an existing run is removed.
absl::StatusOr<RunDirectory> PrepareRunDirectory(const RunDirectoryOptions& options,
                                                 const Config& config);

}  // namespace dtrain
