// Whether `dtrain finetune` may write the folder of its --out: nothing is there, or what this run
// has written itself. Thread-safe.
//
// The command records what a run has written when the run ends. It may be killed before it does, so
// the run puts a file into the folder as the last one, kExportMark, which says whose export it is.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace dtrain::launcher {

// The file of an exported model that names its run: {"run": the id in run.json}. dtrain-finetune
// writes it (examples/finetune).
inline constexpr char kExportMark[] = "dtrain-finetune.json";

// A folder for a tuned model, and what the command knows of it.
struct FinetuneOutput {
  std::string folder;        // --out.
  std::string model_folder;  // The model that is tuned.
  std::string run_dir;       // The run's.
  std::string record;        // The file in which RecordOutput keeps what a run has written.
  bool overwrite = false;    // A model folder of anybody's may be replaced.
};

// Before hours are spent on a model that could not be written. InvalidArgument: the model's own
// folder; FailedPrecondition: something else than a model folder, or a model folder that is neither
// as RecordOutput left it nor as an export of this run that was not recorded, unless `overwrite` is
// true.
absl::Status CheckOutput(const FinetuneOutput& output);

// Remembers the folder's files in `record`, so that the same command may write them anew. Does
// nothing where there is no model in the folder.
absl::Status RecordOutput(const FinetuneOutput& output);

}  // namespace dtrain::launcher
