// The processes of this node that stayed after a failed attempt and wait for the next one. Owns
// them between attempts: they are this process's children. Not thread-safe; used by the main
// thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <utility>
#include <vector>

#include "base/job_env.h"
#include "launcher/rank_plan.h"
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
  void RemoveAll();

 private:
  Guard& guard_;
  std::vector<KeptRank> kept_;
};

}  // namespace dtrain::launcher
