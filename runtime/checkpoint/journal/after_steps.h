// The states with which a run goes on behind its journalled steps: the program's, the random
// generators', the module's buffers'. On a GPU they are copied in stream order, without waiting.
// For the thread that trains; what Take gives is for the journal's.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/json.h"
#include "checkpoint/journal/segment_writer.h"
#include "runtime/checkpoint/engine_snapshot.h"
#include "runtime/checkpoint/journal/journal_record.h"
#include "runtime/checkpoint/journal/queued_copies.h"
#include "runtime/optimizer/engine_state.h"

namespace dtrain {

// The states of the run that a journalled step holds beside the engine's.
struct RunState {
  Json tracked;  // The states that the program tracks, by name.
  absl::Span<const NamedTensor> tensors;
};

// Gives a step's states once they are known. Null: nothing goes on from behind the step.
using LateAfter = std::function<absl::StatusOr<std::shared_ptr<const checkpoint::AfterStep>>()>;

class AfterSteps {
 public:
  // `journalled`: the module's buffers that the journal alone holds; `timeout`: the longest wait
  // for a GPU. REQUIRES: `engine` outlives this object.
  AfterSteps(const EngineState& engine, const RankPlace& place,
             const std::vector<std::string>& journalled, absl::Duration timeout);

  // Takes the states as they are now or, on a GPU, as the work that is queued will leave them.
  // REQUIRES: all that it gave but the last is taken or dropped.
  LateAfter Take(const RunState& run);

 private:
  const EngineState& engine_;
  const RankPlace place_;
  ChangedBuffers buffers_;                   // On a GPU the journal thread's.
  std::unique_ptr<QueuedCopies> copies_[2];  // Null on the host. Two take turns.
  size_t next_ = 0;
};

}  // namespace dtrain
