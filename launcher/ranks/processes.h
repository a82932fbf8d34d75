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
  // The ranks that ended since the last call, with pid, code and signal. Never blocks.
  std::vector<RankEnd> TakeEnds();
  // Sends `signal` to the groups of the ranks that have not ended.
  void Signal(int signal);
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
  std::vector<Process> processes_;
};

// The children of this process, also those adopted as a subreaper, from /proc.
std::vector<pid_t> Children();

}  // namespace dtrain::launcher
