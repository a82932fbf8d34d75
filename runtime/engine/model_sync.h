// Same model on every rank: structure compared, weights and buffers taken from rank 0.
#pragma once

#include "absl/status/status.h"
#include "comm/group.h"
#include "runtime/engine/flat_parameters.h"

namespace dtrain {

// Collective. InvalidArgument on every rank names the first tensor that differs from rank 0's.
absl::Status CheckSameModel(comm::Group& group, const FlatParameters& flat);

// Collective: parameters, frozen parameters and module buffers become rank 0's.
absl::Status BroadcastModel(comm::Group& group, FlatParameters& flat);

}  // namespace dtrain
