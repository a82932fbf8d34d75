// One attempt of a job on this node: its ranks and how they are started, the time that its parts
// may take, and how it ended.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/job_env.h"
#include "launcher/rank_plan.h"
#include "launcher/ranks/rank_end.h"
#include "launcher/ranks/spawn.h"

namespace dtrain::launcher {

struct SupervisorLimits {
  // A rank that ended with 75 may be the victim of one whose end is not yet seen.
  absl::Duration settle = absl::Milliseconds(150);
  // Time between SIGTERM and SIGKILL after a failure.
  absl::Duration terminate = absl::Milliseconds(300);
  // Time for ranks to save and stop after the user's or scheduler's signal.
  absl::Duration stop_grace = absl::Minutes(5);
  // Time for the other ranks to end after the first ended with 0.
  absl::Duration exit_barrier = absl::Minutes(5);
  // Time for the other nodes to end after this one stopped.
  absl::Duration peers_end = absl::Seconds(2);
  // Time for the ranks of a job that hangs to write their stacks.
  absl::Duration stacks = absl::Milliseconds(300);
  // Time for killed processes to be gone.
  absl::Duration removal = absl::Seconds(5);
  // Time for ranks that can stay to give the failed attempt up and to say that they wait.
  absl::Duration stay = absl::Seconds(2);
  // Time for a process that stayed to take its next attempt up.
  absl::Duration reuse = absl::Seconds(5);
  // Time for the news why the ranks were stopped, when one has saved and asks to stay.
  absl::Duration news = absl::Seconds(1);
  // From the first step of all ranks to the start of a process in reserve.
  absl::Duration reserve = absl::Milliseconds(200);
};

struct Attempt {
  std::string program;  // Resolved path.
  std::string name;     // argv[0].
  std::vector<std::string> arguments;
  Environment environment;  // The launcher's own.
  JobShape shape;
  std::vector<RankSlot> slots;
  std::string log_dir;  // Folder of this attempt's logs.
  std::string host;
  std::vector<int> err_shown;  // Ranks whose stderr is shown while they run.
  int token_fd = -1;
  bool reserve = false;  // Keep a process ready that takes the place of the next lost rank.

  // The path of the log of `rank`; `suffix`: "out" or "err".
  std::string LogPath(int rank, const char* suffix) const;
  // The environment of the rank in `slot`.
  Environment EnvironmentOf(const RankSlot& slot) const {
    return RankEnvironment(environment, shape, slot);
  }
  // How its program is started with `variables`. Lacks the files of the output and the place.
  SpawnRequest RequestWith(const Environment& variables) const;
};

struct AttemptResult {
  std::vector<RankEnd> ends;  // This node's ranks, and other nodes' failures.
  StopRequest stop;
  absl::Status error;  // A rank could not be started, or a node was lost.
  // The newest durable step of which another node has told; -1: of none. Where nodes have run
  // directories of their own, only node 0 sees it in its own.
  int64_t durable_step = -1;
};

// The root cause's code; without a cause, that of `error` or of the stop request. Pure.
int ExitCodeOf(const AttemptResult& result);

}  // namespace dtrain::launcher
