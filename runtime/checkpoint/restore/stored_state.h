// The parts of an engine's state that snapshots store and restores read, by their names in a
// checkpoint (docs/CHECKPOINT_FORMAT.md).
#pragma once

#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "base/json.h"
#include "base/numeric/dtype.h"
#include "runtime/checkpoint/engine_snapshot.h"
#include "runtime/optimizer/engine_state.h"

namespace dtrain {

inline constexpr char kStoredRng[] = "rng.cpu";
inline constexpr char kStoredDeviceRng[] = "rng.cuda";
inline constexpr char kStoredMissed[] = "missed_updates";
inline constexpr char kStoredMaster[] = "master";

// The prefix of the names of an engine's tensors. `engine` is empty for the first.
std::string StoredPrefix(const std::string& engine);

// The tensors that a rank keeps of the elements that it updates.
std::vector<NamedTensor> UpdateState(const EngineState& state);
DType StoredStateType(const at::Tensor& tensor);

// A copy of the counts of updates that left a parameter as it was.
at::Tensor MissedUpdates(const EngineState& state);

// The module's buffers that are this rank's own.
std::vector<NamedTensor> OwnBuffers(const EngineState& state, const RankPlace& place);

// The record of an engine: the whole of `records`, or what stands below its "engines"; null: there
// is none.
const Json* RecordOf(const Json& records, const std::string& engine);

}  // namespace dtrain
