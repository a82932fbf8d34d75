// Saves and restores a run: RUN_DIR/checkpoints, format in docs/CHECKPOINT_FORMAT.md.
//
// Every call is collective. A save that fails (a full disk) is reported and training goes on; the
// last good checkpoint stays.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "dtrain/engine.h"
#include "dtrain/job.h"
#include "dtrain/tracked.h"

namespace dtrain {

// A tensor that a checkpoint holds beside those of engines.
struct TrackedTensor {
  std::string name;   // Unique among what the checkpoint tracks.
  at::Tensor tensor;  // Any shape and type, on any device.
};

// Saves the objects that Track names at the configured steps, and restores them when a run starts
// again. A run has one, and the thread that trains uses it.
class Checkpointer {
 public:
  // Collective: opens the checkpoints of the job's run directory. `job` must outlive the result. An
  // error names the key or folder that does not serve.
  static absl::StatusOr<std::unique_ptr<Checkpointer>> Open(Job& job);
  ~Checkpointer();

  // Adds an engine to what checkpoints hold; at least one is needed. Names are unique, and all
  // tracked objects outlive this one. The calls below return FailedPrecondition when no engine was
  // tracked, or one name twice. If there are several engines (a teacher and a student), the first
  // is the checkpoint's model, whose steps count; the tensors of the others are called NAME/... . A
  // run that resumes tracks them in the same order.
  void Track(const std::string& name, Engine& engine);
  // Adds a data loader or another state of the program. Each rank's state is saved and restored on
  // its own.
  void Track(const std::string& name, Tracked& state);
  // Adds tensors of any size that the program keeps itself, such as an average of the weights. They
  // have the same names, types, shapes and values on every rank. Each is stored once, in state/,
  // and restored into the tensor given here, with any number of ranks. Change them in place (lerp_,
  // copy_): if you assign another tensor to a variable, checkpoints still hold the first one. A
  // restore returns FailedPrecondition where the checkpoint has another type or shape of one.
  void Track(const std::string& name, std::vector<TrackedTensor> tensors);

  // Loads the newest checkpoint that verifies, older ones where it does not (each rejected one is
  // named). OK and step 0 when the run never had one. FailedPrecondition: it had one, and none can
  // be used any more (--fresh starts anew). PermissionDenied: one cannot be read. After an error
  // what is tracked may be filled in part.
  absl::Status RestoreLatest();
  // Saves when checkpoint.interval says so, or when all ranks agreed to stop: then it saves and
  // returns Cancelled, which ends the program with 130 or 143. With checkpoint.async the checkpoint
  // is written while training goes on. Until the next step has ended, change weights that train
  // only inside Engine::WithParameters, which waits until they are copied. FailedPrecondition:
  // another job has taken the run directory. InvalidArgument: the tracked states take more than
  // 960 KiB as JSON.
  absl::Status MaybeSave(int64_t step);
  // Saves the last step if it is not saved yet, and waits until everything is durable.
  absl::Status Finish();

 private:
  struct State;
  explicit Checkpointer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace dtrain
