// All objects that a run's checkpoints hold (Checkpointer::Track): its engines, and the states and
// tensors of the program. Checks them and takes snapshots of them. Used by the thread that trains.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtrain/checkpointer.h"
#include "dtrain/engine.h"
#include "dtrain/job.h"
#include "runtime/checkpoint/engine_snapshot.h"
#include "runtime/checkpoint/tracked_states.h"
#include "runtime/model/flat_parameters.h"

namespace dtrain {

class TrackedObjects {
 public:
  using Engines = std::vector<std::pair<std::string, Engine*>>;  // By name; the first is the model.

  // REQUIRES: `job` and all that is added outlive this object.
  explicit TrackedObjects(Job& job) : job_(job) {}

  // Checkpointer::Track. Check tells of the first call that was wrong.
  void Add(const std::string& name, Engine& engine);
  void Add(const std::string& name, Tracked& state);
  void Add(const std::string& name, std::vector<TrackedTensor> tensors);

  // FailedPrecondition: there is no engine, or an object was added as another one was.
  absl::Status Check() const;
  // Collective where tensors were added since the last call. InvalidArgument on every rank: they
  // are not the same on all.
  absl::Status CheckTensors();
  // The same, and that all may be saved as they are now.
  absl::Status CheckSavable();
  // The bytes of the engines' tensors in a checkpoint, over all ranks. An error names a tensor that
  // cannot be stored.
  absl::StatusOr<uint64_t> EngineBytes() const;

  // Adds to a snapshot everything that a checkpoint of now holds. `host`: the one that gets this
  // rank's files; "": all hosts share them. Collective where weights are gathered.
  absl::StatusOr<EngineSnapshot> Take(EngineSnapshot snapshot, const std::string& host);
  // The engines'. Where one is new, it waits until a GPU has ended the last step.
  std::vector<EngineSnapshots>& Snapshots();
  // Whether snapshots gather weights, as at ZeRO stage 3.
  bool GathersWeights();

  // REQUIRES of the first two: Check() is OK.
  int64_t step() const { return engines_.front().second->step(); }
  const std::string& model() const { return engines_.front().first; }
  const Engines& engines() const { return engines_; }
  const TrackedStates& states() const { return states_; }
  const std::vector<NamedTensor>& tensors() const { return tensors_; }  // By TrackedName.
  RankPlace place() const;

 private:
  Job& job_;
  Engines engines_;
  std::vector<EngineSnapshots> snapshots_;  // Snapshots()
  TrackedStates states_;
  std::vector<NamedTensor> tensors_;
  bool are_tensors_checked_ = false;  // They are the same on every rank.
  absl::Status misuse_;               // The first wrong Add.
};

}  // namespace dtrain
