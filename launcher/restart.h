// Whether a failed job is started again, and when a node whose own host failed gets ranks again.
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
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

// Gives what the host of a failed node lacks, such as "No space left on device", as the text of an
// error has it; "": the error tells of nothing that other hosts may have. "Operation not permitted"
// is none: what a container or a firewall does not let a process do is alike on all hosts of a job.
std::string HostTrouble(absl::string_view error);

// The end by which a node tells the coordinator how its attempt ended: RootCause, but that a rank
// whose host is in trouble goes before those that may be its victims. They can end before it.
const RankEnd* CauseToReport(const std::vector<RankEnd>& ends, const StopRequest& stop);

// The rank whose host has the trouble that `error` tells of: the rank `own`, which gives it, unless
// the error names another one before the trouble. Ranks that end together with one that failed say
// why in its words, as in "rank 3 cannot start: ".
int RankInTrouble(absl::string_view error, int own);

// The failures in a row of a node of an elastic job by its own host, whatever the causes, without
// a new durable step on it.
struct HostFailures {
  std::string cause;  // The last one's: what HostTrouble gives, or another name.
  std::string error;  // The text of the last one, as Shortened gives it.
  int times = 0;
  std::string host = {};      // On which the node was. Another one with its number begins anew.
  int64_t durable_step = -1;  // The job's newest one at the last failure.
};

// The text of an error in at most 300 bytes, because it goes in many messages. A longer one loses
// its middle: what failed stands in front, and why at the end. Text in UTF-8 stays so.
std::string Shortened(const std::string& error);

// `before` with one failure more.
HostFailures WithFailure(const HostFailures& before, const std::string& cause,
                         const std::string& error);

struct AsidePlan {
  // The node gets no ranks for so long: ten seconds after its first failure, three times as long
  // after each further one, at most an hour.
  absl::Duration wait;
  // It has failed so often that its agent leaves the job. One that is started again waits all the
  // same for what is left of `wait`.
  bool leaves = false;
};

// REQUIRES: it has failed.
AsidePlan PlanAside(const HostFailures& failures);

}  // namespace dtrain::launcher
