// An engine's state as the tensors of a checkpoint, and back.
//
// model/ holds whole tensors under public names, each given by one rank (cut by bytes, in
// registration order). state/ holds this rank's equal slice of the flat moments and its RNG: at
// stage 0 every rank could write all of them; a slice each stores them once. Weights in fp32 are
// their own master and are not stored twice.
#pragma once

#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "base/json.h"
#include "checkpoint/reader.h"
#include "checkpoint/state_source.h"
#include "runtime/engine/engine_state.h"

namespace dtrain {

struct RankPlace {
  int rank = 0;
  int world_size = 1;
};

// The part of the flat buffers that `place` stores: [begin, end) elements. Pure.
struct FlatSlice {
  int64_t begin = 0;
  int64_t end = 0;
};
FlatSlice SliceOf(int64_t total_elements, RankPlace place);

// Unimplemented names a tensor of the model that no checkpoint can hold (complex numbers): found at
// the start, not at the first restore.
absl::Status CheckStorable(const EngineState& state);

// Spans into the engine's memory: the engine must not step while the source is used. The vectors
// keep copies (RNG) alive.
struct EngineSnapshot {
  checkpoint::SpanSource source;
  std::vector<at::Tensor> keep;
};
EngineSnapshot TakeSnapshot(const EngineState& state, RankPlace place);

// Reads weights, moments, RNG and step back. FailedPrecondition when the checkpoint is of another
// model. Another world size is fine: slices are read from whoever wrote them; the RNG is then not
// restored and `note` says so.
absl::Status RestoreSnapshot(EngineState& state, checkpoint::Checkpoint& from, RankPlace place,
                             std::string& note);

}  // namespace dtrain
