// The ranks of one attempt as processes: starts, signals, observes and removes them. Not
// thread-safe; used by the main thread alone.
//
// A rank that ended stays a zombie until RemoveAll, so its number cannot be taken by a stranger
// while its process group may still be signalled.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "launcher/ranks/guard.h"
#include "launcher/ranks/rank_end.h"
#include "launcher/ranks/spawn.h"

namespace dtrain::launcher {

class Processes {
 public:
  explicit Processes(Guard& guard) : guard_(guard) {}
  ~Processes();

  absl::Status Start(SpawnRequest request, int rank);
  // A process of an earlier attempt, which its owner had kept, runs `rank` now.
  void Adopt(pid_t pid, int rank);
  // The process of `rank` belongs to the caller from now on; RemoveAll spares it. Gives its pid.
  // REQUIRES: PidOf(rank) >= 0.
  pid_t Release(int rank);
  // A child of this process that is no rank; RemoveAll spares it.
  void Spare(pid_t pid) { released_.push_back(pid); }
  // -1: no process of this rank runs.
  pid_t PidOf(int rank) const;
  // The ranks that ended since the last call, with pid, code and signal. Never blocks.
  std::vector<RankEnd> TakeEnds();
  // Sends `signal` to the groups of the ranks that have not ended.
  void Signal(int signal);
  void SignalRank(int rank, int signal);
  // Kills whatever is left of all groups, and descendants that left their group; waits for their
  // end at most `timeout`. DeadlineExceeded names the processes that did not die (a hung disk can
  // hold them).
  absl::Status RemoveAll(absl::Duration timeout);

  int alive() const;
  // Ranks that have not ended.
  std::vector<int> AliveRanks() const;

 private:
  struct Process {
    pid_t pid = -1;
    int rank = 0;
    bool ended = false;
    bool reaped = false;
  };
  Guard& guard_;
  static void SignalProcess(const Process& process, int signal);

  std::vector<Process> processes_;
  std::vector<pid_t> released_;
};

// The children of this process, also those adopted as a subreaper, from /proc.
std::vector<pid_t> Children();

}  // namespace dtrain::launcher
