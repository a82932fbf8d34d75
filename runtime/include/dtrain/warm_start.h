// A model that begins with some weights of another one: all that a pattern names are read from a
// checkpoint or a model folder, and the others keep what the program gave them.
//
//   // A new head on a trained body.
//   const dtrain::WarmStartOptions body = {.exclude = {"head.*"}};
//   DT_RETURN_IF_ERROR(dtrain::WarmStart(job, *model, "runs/base", body).status());
//   DT_ASSIGN_OR_RETURN(auto engine, dtrain::Engine::Create(job, *model));
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dtrain/job.h"

namespace torch::nn {
class Module;
}

namespace dtrain {

// Which tensors WarmStart reads, and by which names.
struct WarmStartOptions {
  // Names of parameters and buffers in the module, with `*` for any text. Tied weights have several
  // names: any of them includes or excludes, and they are read by the first that the files have.
  std::vector<std::string> include = {"*"};
  std::vector<std::string> exclude = {};  // These are not read, although `include` names them.
  // Name in the files, from the name in the module. Null: the same.
  std::function<std::string(const std::string&)> public_name = {};
  // Whether a tensor that is named and that the files lack keeps its value. False: an error.
  bool allow_missing = false;
};

// Says what WarmStart has done with each tensor of the module.
struct WarmStarted {
  std::vector<std::string> read;  // Names in the module.
  std::vector<std::string> kept;  // The others.
};

// The model folder that `path` means: itself, the `model/` of a checkpoint (step-...), or that of
// the newest checkpoint of a run directory or its checkpoints/ whose model is whole. A model in a
// checkpoint is read and compared with its checksums. NotFound: it is none of them.
absl::StatusOr<std::string> FindModelFolder(const std::string& path);

// Collective: fills what the options name from FindModelFolder(path). Call it before
// Engine::Create, which takes rank 0's values: only rank 0 reads them, and all ranks get its
// result. InvalidArgument, before anything is read: tensors that the files lack or hold with
// another shape (all of them are listed), or a pattern that names nothing in the module.
absl::StatusOr<WarmStarted> WarmStart(Job& job, torch::nn::Module& module, const std::string& path,
                                      const WarmStartOptions& options = {});

}  // namespace dtrain
