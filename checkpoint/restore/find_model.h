// Finds the model that a path means: a model's folder itself, or the newest whole one among the
// checkpoints of a run. Reads folders; no state.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace dtrain::checkpoint {

// `path` is a model's folder, a run directory, its folder of checkpoints or one checkpoint, on a
// disk (open_target.h). Gives the folder with the weights: `path` itself, or that of the newest
// checkpoint on the run's lineage whose files of the model are all equal to their checksums; a log
// line names each newer one. A copy of a checkpoint under another name counts as a model's folder,
// whose files are not compared. NotFound: it is none of these, or the newest attempt has saved
// nothing. InvalidArgument: all are damaged, or `path` is in an object store. PermissionDenied: a
// newer one may be whole and cannot be read.
absl::StatusOr<std::string> FindModel(const std::string& path);

}  // namespace dtrain::checkpoint
