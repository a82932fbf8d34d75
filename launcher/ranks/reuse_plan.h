// Which processes of an attempt are used again in the next one, and what a process in reserve takes
// over. Pure functions.
//
// A process keeps what it has read or been given once: its cores, its memory node, its GPU, and the
// variables that libraries read when they load. Only the variables that dtrain reads anew for each
// attempt may change. A process in reserve has begun no job: it is bound to no cores, and keeps
// only what libraries have read while they were loaded.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/job_env.h"
#include "launcher/rank_plan.h"
#include "launcher/ranks/rank_end.h"

namespace dtrain::launcher {

// A process that waits for its next attempt, and what it had in the last one.
struct KeptRank {
  pid_t pid = -1;
  RankSlot slot;
  Environment environment;
};

// Whether ranks that are not the cause may be used again: `cause` (null: none) and `error` tell of
// lost ranks, nodes or connections, and of nothing that the program or its user did.
bool MayReuse(const RankEnd* cause, const absl::Status& error);

// Why a process cannot take the place `slot` with `environment`; "" when it can.
std::string WhyNotReused(const KeptRank& kept, const RankSlot& slot,
                         const Environment& environment);

// The variables that a process takes over for its next attempt.
Environment AttemptVariables(const Environment& environment);

// The environment with which a process is started in reserve: that of a rank of its node, without
// what makes it a rank.
Environment ReserveEnvironment(Environment of_rank);

// The variables that a process with ReserveEnvironment `reserve` takes over to be a rank with
// `environment`; nothing if it cannot be one.
std::optional<Environment> VariablesForReserve(const Environment& reserve,
                                               const Environment& environment);

}  // namespace dtrain::launcher
