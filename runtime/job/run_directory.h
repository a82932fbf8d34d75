// The run directory: one folder a run, made or resumed by rank 0.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json.h"
#include "dtrain/config.h"

namespace dtrain {

struct RunDirectoryOptions {
  std::string path;
  std::string run_id;         // "" : the one of the run that is there, else a new random one.
  bool fresh = false;         // Move an existing run to PATH.old-N first.
  bool has_agent = false;     // An agent writes logs/ and events.jsonl there already.
  bool is_fresh_job = false;  // --fresh was given. It is followed until an attempt has begun.
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
  bool begins_anew = false;  // Whatever checkpoint.dir holds.
  int64_t saved_steps = 0;   // train_steps of the run that is resumed; 0: not known.
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

// Only rank 0 calls it: writes the values of `config` into config.json and run.json anew. REQUIRES:
// PrepareRunDirectory has made them, with values that a resumed run may change.
absl::Status RecordConfiguration(const std::string& path, const Config& config);

}  // namespace dtrain
