// Tensors that a program has a checkpoint hold beside its engines' (Checkpointer::Track). They are
// the same on every rank: each is stored once, whole, by one rank, in state/, and read by all.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "comm/group.h"
#include "dtrain/checkpointer.h"
#include "runtime/checkpoint/engine_snapshot.h"
#include "runtime/checkpoint/restore/restore_reads.h"
#include "runtime/model/flat_parameters.h"

namespace dtrain {

// The name of a tracked tensor in state/.
std::string TrackedName(const std::string& group, const std::string& tensor);

// Adds the tensors that the program tracks as `name` to `all`. FailedPrecondition: one is there
// already, or has no memory.
absl::Status AddTensors(const std::string& name, std::vector<TrackedTensor> tensors,
                        std::vector<NamedTensor>& all);

// The bytes of all tensors together.
uint64_t TrackedBytes(absl::Span<const NamedTensor> tensors);

// Collective. InvalidArgument on every rank unless all track tensors of the same names, types and
// shapes in the same order.
absl::Status CheckSameTensors(comm::Group& group, absl::Span<const NamedTensor> tensors);

// Adds those that the rank at `place` stores: as many bytes as the others. Copies from a GPU are
// only queued (OnHost). Unimplemented names a tensor of a type that no checkpoint holds.
absl::Status AddTrackedTensors(absl::Span<const NamedTensor> tensors, const RankPlace& place,
                               EngineSnapshot& snapshot);

// Asks for each in place, whatever rank stored it; one that the checkpoint does not hold stays as
// it is, with a warning. FailedPrecondition names one that it holds with another type or shape:
// nothing is asked for then. `read`: the names that were asked for so far, of checkpoints that
// turned out to be damaged. Unavailable names one of them that this checkpoint does not hold: it
// cannot be as new any more, but is when the program starts again, which then goes on from this
// checkpoint.
absl::Status ReadTrackedTensors(absl::Span<const NamedTensor> tensors, RestoreReads& reads,
                                std::set<std::string>& read);

}  // namespace dtrain
