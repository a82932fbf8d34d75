// Whether a failed job is started again. Pure.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "launcher/ranks/rank_end.h"

namespace dtrain::launcher {

struct RestartInput {
  RankEnd cause;  // Root cause of the attempt that ended.
  // An elastic job lost a node. It goes on with those that are left, which uses none of
  // --max-restarts, and `cause` is not read.
  bool node_lost = false;
  int restarts_max = 0;       // --max-restarts.
  int restarts_used = 0;      // Restarts so far.
  int bug_restarts_used = 0;  // Restarts so far after exit code 70.
  // Consecutive failed attempts without a new checkpoint, including this one. In an elastic job
  // those of one cause.
  int without_progress = 0;
};

struct RestartPlan {
  bool restart = false;
  int exit_code = 0;    // Valid when not restarting.
  absl::Duration wait;  // Wait before the next attempt: a second for each of without_progress.
  std::string reason;   // One sentence for the log.
};

// 3 consecutive attempts without a new committed checkpoint end with 93.
inline constexpr int kAttemptsWithoutProgressMax = 3;

RestartPlan RestartDecision(const RestartInput& input);

// Whether the rank ended because of the program or its user, so that no restart would help. A stop
// signal, which a host that goes down sends too, is no such error.
bool IsProgramsError(const RankEnd& end);

}  // namespace dtrain::launcher
