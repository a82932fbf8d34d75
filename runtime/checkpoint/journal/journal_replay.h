// Takes the journalled steps behind a checkpoint again (step_journal.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/json.h"
#include "checkpoint/exchange.h"
#include "checkpoint/format/step_id.h"
#include "checkpoint/storage/storage.h"
#include "dtrain/config.h"
#include "dtrain/engine.h"
#include "runtime/checkpoint/engine_snapshot.h"

namespace dtrain {

struct Replayed {
  int64_t steps = 0;
  Json tracked;                      // The program's states behind the last; null without steps.
  std::vector<std::string> buffers;  // The module's buffers that the journal alone holds.
};

struct ReplayFrom {
  checkpoint::Storage& storage;
  checkpoint::StepId checkpoint;  // The engine holds it.
  checkpoint::Exchange& exchange;
  absl::Duration timeout;  // Limits an exchange, and each piece of a rank's work, as a step.
};

// Collective. Weights, optimizer states, random numbers and `tensors` are then as they were behind
// the last step that all ranks had journalled, whatever their number; of what is each rank's own
// another number of ranks takes rank 0's. FailedPrecondition: the steps were taken with other
// settings of the update.
absl::StatusOr<Replayed> ReplayJournal(const ReplayFrom& from, const Config& config,
                                       absl::Span<const NamedTensor> tensors, RankPlace place,
                                       Engine& engine);

}  // namespace dtrain
