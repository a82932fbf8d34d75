// The processes of this node that have no attempt and wait for one: those that stayed after the
// last attempt, and one that was started in reserve. Owns them meanwhile: they are this process's
// children. Not thread-safe; used by the main thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/job_env.h"
#include "launcher/rank_plan.h"
#include "launcher/ranks/attempt.h"
#include "launcher/ranks/guard.h"
#include "launcher/ranks/reuse_plan.h"

namespace dtrain::launcher {

class Survivors {
 public:
  // REQUIRES: `guard` outlives this object.
  explicit Survivors(Guard& guard) : guard_(guard) {}
  Survivors(const Survivors&) = delete;
  Survivors& operator=(const Survivors&) = delete;
  ~Survivors() { RemoveAll(); }

  void Keep(KeptRank kept) { kept_.push_back(std::move(kept)); }
  // Gives the pid of the process that can take `slot`, which then belongs to the caller; nothing if
  // there is none.
  std::optional<pid_t> Take(const RankSlot& slot, const Environment& environment);
  // Kills `pid`, which belongs to the caller, with its group, and waits for its end, at most a
  // second.
  void Remove(pid_t pid);
  // Those that stayed.
  void RemoveKept();
  // The one in reserve too.
  void RemoveAll();

  // Starts the program of `attempt` as a process without a rank, which takes the place of the next
  // rank of this node that is lost. REQUIRES: there is none.
  absl::Status StartReserve(const Attempt& attempt);
  // -1: there is none.
  pid_t reserve_pid() const { return reserve_.pid; }
  struct Reserve {
    pid_t pid = -1;
    Environment variables;  // It has to take these over.
  };
  // Gives the process in reserve, which then belongs to the caller, if it can be a rank with
  // `environment`.
  std::optional<Reserve> TakeReserve(const Environment& environment);

 private:
  Guard& guard_;
  std::vector<KeptRank> kept_;
  Reserve reserve_;  // Its variables are those it has.
};

}  // namespace dtrain::launcher
