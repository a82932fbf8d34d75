// Same model on every rank: structure compared, weights and buffers taken from rank 0.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/group.h"
#include "runtime/model/flat_parameters.h"
#include "runtime/plan/layout/shard_plan.h"

namespace dtrain {

// Collective. InvalidArgument on every rank names the first tensor whose shape or own type differs
// from rank 0's. `shares_out_frozen`: so do frozen parameters that some ranks could share out and
// others could not (FlatParameters::CanBeSharedOut). REQUIRES: before FlatParameters::TakeFrozen.
absl::Status CheckSameModel(comm::Group& group, const FlatParameters& flat, bool shares_out_frozen);

// Collective: the first rank whose `mine` is not that of rank 0; nothing where all are equal.
// `name` is shown in reports.
absl::StatusOr<std::optional<int>> FirstRankThatDiffers(comm::Group& group, uint64_t mine,
                                                        const char* name);

// Collective. InvalidArgument on every rank when ranks have named other units
// (EngineOptions::units): their collectives would not fit together.
absl::Status CheckSameUnits(comm::Group& group, const std::vector<plan::FlatRange>& units);

// Collective: parameters, frozen parameters and module buffers become rank 0's. `frozen`: what
// FlatParameters::TakeFrozen gave; may be null.
absl::Status BroadcastModel(comm::Group& group, const FlatParameters& flat,
                            const FlatParameters* frozen);

}  // namespace dtrain
