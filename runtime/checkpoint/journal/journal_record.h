// Makes and reads what a step journal holds of a step beside its gradient: the numbers of its end,
// and the states with which the run goes on behind it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/json.h"
#include "checkpoint/journal/segment_writer.h"
#include "runtime/checkpoint/engine_snapshot.h"
#include "runtime/optimizer/engine_state.h"
#include "runtime/optimizer/step_end.h"

namespace dtrain {

// Exact: numbers of type double are stored by their bits.
Json StepEndJson(const StepEnd& end);
// InvalidArgument: `json` is none.
absl::StatusOr<StepEnd> ParseStepEnd(int64_t step, const Json& json);

// The module's buffers that have changed since checkpoints of this run held them. A journal's step
// has all of these, because the checkpoint from which it is replayed may be older than the attempt.
class ChangedBuffers {
 public:
  // The buffers as they are now are in a checkpoint, or, of those named in `journalled`, in a
  // journal alone.
  ChangedBuffers(const EngineState& state, const std::vector<std::string>& journalled);
  // Adds the changed ones that the rank at `place` journals: its own where each rank has its own,
  // else rank 0's. `now`: all of them, as they are or on the host as copies.
  void Add(absl::Span<const NamedTensor> now, const RankPlace& place, checkpoint::AfterStep& after);

 private:
  const bool local_;  // Each rank has its own.
  std::vector<uint32_t> checksums_;
  std::vector<bool> changed_;  // Since the start, by buffer.
};

// Adds the random generators' states, a GPU's too.
void AddGenerators(checkpoint::AfterStep& after);
// Adds tensors that the program tracks.
void AddTracked(absl::Span<const NamedTensor> tracked, checkpoint::AfterStep& after);

// Puts into force what these and ChangedBuffers took: `own` of this rank, or of rank 0 where
// another number of ranks journalled it, and rank 0's for what is the same on all. Gives the names
// of the module's buffers among it.
absl::StatusOr<std::vector<std::string>> RestoreAfter(const checkpoint::AfterStep& own,
                                                      const checkpoint::AfterStep& of_rank0,
                                                      absl::Span<const NamedTensor> tracked,
                                                      EngineState& state);

}  // namespace dtrain
