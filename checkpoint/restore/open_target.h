// Resolves the checkpoints that a command line names: a run directory, its checkpoints/ folder, one
// step-* folder in it, or the same two in an object store (s3://bucket/prefix). Reads folders; no
// state.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/format/step_id.h"
#include "checkpoint/storage/storage.h"

namespace dtrain::checkpoint {

struct Target {
  std::unique_ptr<Storage> storage;
  std::optional<StepId> id;  // Set if one checkpoint's folder was named.
};

// `path` without the slashes at its end. InvalidArgument: it is empty, or an address of another
// kind than s3://.
absl::StatusOr<std::string> PlaceOf(std::string path);

// The same for what only a folder or file of this machine can be: s3:// is refused too.
absl::StatusOr<std::string> LocalPlaceOf(std::string path);

// A run directory is recognised by its config.json, whose checkpoint.dir is followed from the
// folder that the run was started in (run.json), or by its checkpoints/ folder. NotFound: no such
// folder; it says where it looked.
absl::StatusOr<Target> OpenTarget(std::string directory);

// The checkpoint that was named, or else all, the newest first. NotFound when there is none.
absl::StatusOr<std::vector<StepId>> CheckpointsOf(const Target& target);

// The checkpoint called `name` (step-000000001200.e1), or else the one that the target names, or
// else the newest.
absl::StatusOr<StepId> ChooseOne(const Target& target, const std::string& name);

}  // namespace dtrain::checkpoint
