// An engine's state out of a checkpoint, in two steps, because the checkpoint may turn out to be
// damaged while it is read. Reading fills weights and states in place, each of which the checkpoint
// before it would fill again. What such a checkpoint may lack is kept aside, and applied when every
// rank has read its part and found it whole.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/json.h"
#include "checkpoint/restore/reader.h"
#include "runtime/checkpoint/engine_snapshot.h"
#include "runtime/checkpoint/restore/restore_reads.h"
#include "runtime/optimizer/engine_state.h"

namespace dtrain {

// Whether a checkpoint has no states, as `dtrain checkpoint import` writes it: a run takes its
// weights and begins at step 0.
bool HoldsWeightsAlone(const checkpoint::Checkpoint& from);

// Whether a change of the configuration was accepted for this run. Empty: none was.
using AcceptsChange = std::function<bool(absl::string_view key)>;

// The state that is applied to one engine after the reads.
struct RestoredValues {
  Json record;        // The engine's in the manifest.
  at::Tensor missed;  // These three are undefined where they stay as they are.
  at::Tensor rng;     // The process has one, which comes with the first engine.
  at::Tensor device_rng;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers;  // What was read, and where it belongs.
  bool weights_alone = false;
  std::string note;  // For people; "" for nothing.
};

// Asks for weights, states and random numbers of an engine; `name` is empty for the first.
// FailedPrecondition when the checkpoint is of another model or holds no such engine. Another world
// size or stage is fine: ranges are asked for from whoever wrote them, and of what is each rank's
// own all take rank 0's; the note says so. So is another precision: masters go on exactly, weights
// are rounded from them. A setting of the model that `accepts` names may differ.
// Not collective.
absl::StatusOr<RestoredValues> ReadEngine(EngineState& state, const std::string& name,
                                          RankPlace place, RestoreReads& reads,
                                          const AcceptsChange& accepts);

// Makes the engine go on from what was read. At ZeRO stage 3 a collective.
absl::Status ApplyEngine(const RestoredValues& values, EngineState& state);

}  // namespace dtrain
