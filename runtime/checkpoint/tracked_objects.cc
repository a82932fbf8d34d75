#include "runtime/checkpoint/tracked_objects.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/checkpoint/model_tensors.h"
#include "runtime/checkpoint/tracked_tensors.h"
#include "runtime/job/job_state.h"

namespace dtrain {

void TrackedObjects::Add(const std::string& name, Engine& engine) {
  for (const auto& [other, tracked] : engines_) {
    if (other == name || tracked == &engine) {
      misuse_.Update(absl::FailedPreconditionError(absl::StrFormat(
          "Checkpointer::Track got an engine \"%s\" after \"%s\" with the same %s; track "
          "each engine once, by a name of its own",
          name, other, other == name ? "name" : "engine")));
      return;
    }
  }
  engines_.emplace_back(name, &engine);
}

void TrackedObjects::Add(const std::string& name, Tracked& state) {
  if (!states_.Add(name, state)) {
    misuse_.Update(absl::FailedPreconditionError(absl::StrFormat(
        "Checkpointer::Track got the name \"%s\" twice; give each tracked state a name of its own",
        name)));
  }
}

void TrackedObjects::Add(const std::string& name, std::vector<TrackedTensor> tensors) {
  misuse_.Update(AddTensors(name, std::move(tensors), tensors_));
  are_tensors_checked_ = false;
}

absl::Status TrackedObjects::Check() const {
  DT_RETURN_IF_ERROR(misuse_);
  if (engines_.empty()) {
    return absl::FailedPreconditionError(
        "the Checkpointer tracks no engine, so no weight would be saved; call "
        "Track(\"engine\", *engine) before RestoreLatest and MaybeSave");
  }
  return absl::OkStatus();
}

absl::Status TrackedObjects::CheckTensors() {
  if (tensors_.empty() || are_tensors_checked_) {
    return absl::OkStatus();
  }
  DT_RETURN_IF_ERROR(CheckSameTensors(job_.group(), tensors_));
  are_tensors_checked_ = true;
  return absl::OkStatus();
}

absl::Status TrackedObjects::CheckSavable() {
  DT_RETURN_IF_ERROR(states_.CheckBytes());
  return CheckTensors();
}

absl::StatusOr<uint64_t> TrackedObjects::EngineBytes() const {
  uint64_t bytes = 0;
  for (const auto& [name, engine] : engines_) {
    DT_RETURN_IF_ERROR(CheckStorable(engine->state()));
    bytes += StoredBytes(engine->state());
  }
  return bytes;
}

absl::StatusOr<EngineSnapshot> TrackedObjects::Take(EngineSnapshot snapshot,
                                                    const std::string& host) {
  for (EngineSnapshots& of_engine : Snapshots()) {
    DT_RETURN_IF_ERROR(of_engine.AddTo(snapshot));
  }
  if (GathersWeights()) {
    snapshot.source.SortAsWritten();
  }
  if (!tensors_.empty()) {
    DT_RETURN_IF_ERROR(AddTrackedTensors(tensors_, place(), snapshot));
    if (!job_.state().device->is_host() && !snapshot.gpu.has_value()) {
      DT_RETURN_IF_ERROR(job_.state().device->Synchronize());
    }
  }
  AddJobRecords({.model = model(),
                 .tracked = states_.Save(),
                 .metrics = job_.metrics().ValuesAtStep(),
                 .accepted_changes = job_.state().accepted_changes,
                 .host = host},
                snapshot.source);
  return snapshot;
}

std::vector<EngineSnapshots>& TrackedObjects::Snapshots() {
  for (size_t i = snapshots_.size(); i < engines_.size(); ++i) {
    const auto& [name, engine] = engines_[i];
    snapshots_.emplace_back(engine->state(), place(), i == 0 ? "" : name);
  }
  return snapshots_;
}

bool TrackedObjects::GathersWeights() {
  return std::any_of(Snapshots().begin(), Snapshots().end(),
                     [](const auto& of_engine) { return !of_engine.state().lives().empty(); });
}

RankPlace TrackedObjects::place() const {
  return {job_.rank(), job_.world_size(), ParameterOffload(job_.config())};
}

}  // namespace dtrain
