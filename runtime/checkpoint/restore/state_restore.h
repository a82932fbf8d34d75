// The way of a checkpoint into all that a Checkpointer tracks, in one pass: the ranks compare what
// they read with its checksums, so a checkpoint may turn out to be damaged when engines and tensors
// are already half filled. The next Read, from the checkpoint before it, fills them again. For the
// thread that trains, which makes the same calls on every rank.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "checkpoint/exchange.h"
#include "checkpoint/restore/reader.h"
#include "checkpoint/restore/restore_agreement.h"
#include "dtrain/engine.h"
#include "dtrain/job.h"
#include "runtime/checkpoint/restore/engine_restore.h"
#include "runtime/model/flat_parameters.h"

namespace dtrain {

class StateRestore {
 public:
  using Engines = std::vector<std::pair<std::string, Engine*>>;  // By name; the first is the model.

  // REQUIRES: all outlive this object.
  StateRestore(Job& job, const Engines& engines, absl::Span<const NamedTensor> tensors,
               RankPlace place)
      : job_(job), engines_(engines), tensors_(tensors), place_(std::move(place)) {}

  // Collective. Gives whether the checkpoint is whole; if not, another one is to be read.
  // Unavailable: of that one not everything would be as it was, but would be in a program that
  // starts again.
  absl::StatusOr<checkpoint::RestoreOutcome> Read(checkpoint::Checkpoint& from,
                                                  checkpoint::Exchange& exchange);
  // Collective, behind a Read that found the checkpoint whole. Gives a note for people.
  absl::StatusOr<std::string> Apply();

 private:
  absl::Status AskFor(RestoreReads& reads);
  absl::Status AskForEngines(RestoreReads& reads);

  Job& job_;
  const Engines& engines_;
  const absl::Span<const NamedTensor> tensors_;
  const RankPlace place_;
  bool filled_ = false;                 // A Read has begun to fill engines.
  std::set<std::string> read_;          // The tensors that were filled.
  std::vector<RestoredValues> values_;  // By engine, of the last Read.
};

}  // namespace dtrain
