// The step journal as a Checkpointer uses it: nothing is written where checkpoint.journal is "off".
// For the thread that trains, which makes the same calls on every rank.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/commit/epoch.h"
#include "checkpoint/storage/storage.h"
#include "dtrain/engine.h"
#include "runtime/checkpoint/journal/journal_replay.h"
#include "runtime/checkpoint/journal/step_journal.h"
#include "runtime/checkpoint/tracked_states.h"

namespace dtrain {

class RunJournal {
 public:
  // The engines that a checkpointer tracks, by name.
  using Engines = std::vector<std::pair<std::string, Engine*>>;

  // REQUIRES: both outlive this object.
  RunJournal(Job& job, const Engines& engines)
      : job_(job), engines_(engines), is_wanted_(job.config().checkpoint_journal() != "off") {}

  bool is_wanted() const { return is_wanted_; }
  // Unimplemented: the run cannot have a journal. REQUIRES: an engine is tracked.
  absl::Status Check() const;
  // Collective: takes the journalled steps behind a checkpoint again, also where this run writes no
  // journal.
  absl::StatusOr<Replayed> Replay(const ReplayFrom& from, absl::Span<const NamedTensor> tensors,
                                  const RankPlace& place) const;
  // The attempt's first step follows. `buffers`: the module's buffers that the journal alone holds.
  void Begin(checkpoint::Storage& storage, const checkpoint::EpochRecord& epoch,
             const RankPlace& place, const std::vector<std::string>& buffers);
  // Whether Begin was called, or nothing is wanted.
  bool has_begun() const { return !is_wanted_ || journal_ != nullptr; }
  // MaybeSave was called behind a step.
  void EndStep(const TrackedStates& states, absl::Span<const NamedTensor> tensors);
  // A checkpoint of the step is saved, or its save begins.
  void Rotate();
  // A checkpoint is durable: what came before it is not needed, also where this run writes no
  // journal and an attempt before has left one.
  void RemoveBefore(const checkpoint::StepId& id);
  void Finish();

 private:
  Job& job_;
  const Engines& engines_;
  const bool is_wanted_;
  std::shared_ptr<StepJournal> journal_;
  checkpoint::Storage* left_in_ = nullptr;  // An attempt before may have left one there.
};

}  // namespace dtrain
