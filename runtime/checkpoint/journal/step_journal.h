// The step journal of a run (checkpoint.journal): keeps each step's reduced gradient and what else
// the step changed, so that a run resumes behind its last step and not at its last checkpoint. A
// replay takes the same updates again, to the bit (journal_replay.h).
//
// The update of a step takes the gradient rounded to what the journal holds, of which a copy stays
// (journal_update.h); a thread of its own writes the copy. On a GPU it waits for the device before,
// so that no step does. When a checkpoint is saved, a new segment of the journal begins, and what
// came before goes once the checkpoint is durable. A journal that fails, is slower than the steps
// or waits for a disk that hangs switches itself off with an alarm, and training goes on; the
// rounding stays, because the arithmetic of a run must not depend on its disk.
//
// For the thread that trains, which makes the same calls on every rank.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/json.h"
#include "checkpoint/commit/epoch.h"
#include "checkpoint/storage/storage.h"
#include "dtrain/job.h"
#include "runtime/checkpoint/engine_snapshot.h"
#include "runtime/checkpoint/journal/after_steps.h"
#include "runtime/checkpoint/journal/journal_thread.h"
#include "runtime/checkpoint/journal/journal_update.h"
#include "runtime/optimizer/engine_state.h"

namespace dtrain {

// The values of the configuration that updates follow from. A journal is replayed under the same.
Json UpdateSettings(const Config& config);

class StepJournal : public std::enable_shared_from_this<StepJournal> {
 public:
  // Unimplemented names what a journal cannot hold: an optimizer that looks beyond elements,
  // several engines.
  static absl::Status Check(const Job& job, const EngineState& engine, size_t engines);

  // REQUIRES: Check is OK; all outlive this object.
  StepJournal(Job& job, checkpoint::Storage& storage, EngineState& engine, RankPlace place);
  StepJournal(const StepJournal&) = delete;
  StepJournal& operator=(const StepJournal&) = delete;

  // The attempt begins behind the engine's step, which a checkpoint or the journal holds;
  // `journalled`: the module's buffers that the journal alone holds.
  void Begin(const checkpoint::EpochRecord& epoch, const std::vector<std::string>& journalled);
  // The program is done with the step that the engine took last: it is journalled. With "sync"
  // returns when it is durable, with "async" when the one before it is.
  void EndStep(const RunState& run);
  // A checkpoint of the engine's step is being saved: a new segment begins.
  void Rotate();
  // On rank 0, when the checkpoint is durable.
  void RemoveBefore(const checkpoint::StepId& id) { thread_.RemoveBefore(id); }
  // Waits until all is durable, and what a checkpoint has made needless is gone.
  void Finish();

 private:
  // A step whose update is kept, before the program is done with it.
  struct Taken {
    int64_t step = 0;
    bool has_ended = false;  // The update has.
  };

  // StepHooks::keep_step.
  void Take(const StepEnd& end);
  // StepHooks::step_updated.
  void Updated();
  void Append(LateAfter after);
  // The program has changed weights between steps, which no replay would repeat.
  void EndAtWrite();
  // Waits until at most `steps` of the steps so far are not durable, but not for a disk that hangs.
  void AwaitDisk(int steps);
  void SwitchOffIfNeeded();
  void SwitchOff(const std::string& why);
  checkpoint::SegmentHeader Header() const;
  void Record();

  Job& job_;
  EngineState& engine_;
  const RankPlace place_;
  const bool sync_;
  const std::vector<plan::OwnedRange> stored_;  // This rank journals these of the gradient.
  const std::shared_ptr<JournalUpdate> update_;
  std::optional<AfterSteps> after_;
  checkpoint::EpochRecord epoch_;
  int64_t attempt_base_ = 0;
  bool on_ = false;
  bool for_good_ = false;  // It stays off: what switched it off would do so again.
  std::optional<Taken> taken_;
  struct Rate {
    int64_t steps = 0;
    int64_t begin_nanos = 0;
    double written_s = 0;
  };
  Rate rate_;             // For the last steps.
  double blocked_s_ = 0;  // Training stood still for it, since the last record of the metrics.
  JournalThread::Work recorded_;
  JournalThread thread_;  // Ends first.
};

}  // namespace dtrain
