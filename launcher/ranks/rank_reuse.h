// Uses the processes of ranks again: those that stayed after the last attempt, or the one in
// reserve, get a place in this attempt, and its own may stay for the next one.
//
// It tells the processes and remembers whose answer is due. The supervisor decides when, and notes
// the ends that it gives. Used by the supervisor's thread.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "base/agent_channel.h"
#include "base/deadline.h"
#include "base/job_env.h"
#include "base/next_attempt.h"
#include "launcher/ranks/agent_socket.h"
#include "launcher/ranks/attempt.h"
#include "launcher/ranks/processes.h"
#include "launcher/ranks/survivors.h"
#include "launcher/records/reporter.h"

namespace dtrain::launcher {

class RankReuse {
 public:
  // All outlive this object. `survivors` are those of the attempt before, and of this one for the
  // next; null: none are kept.
  RankReuse(const Attempt& attempt, const SupervisorLimits& limits, AgentSocket& socket,
            Reporter& reporter, Processes& processes, Survivors* survivors);

  // To be called before the first rank is started.
  void Begin();
  // Gives a process that waits the place of `slot`. False: there is none that could take it.
  bool Start(const RankSlot& slot, const Environment& environment);
  // All ranks are started: removes the processes that stayed and found no place.
  void RemoveRest();
  // A process says that it can stay (AgentMessage::Kind::kCanStay).
  void OnCanStay(const AgentMessage& message);
  // A rank has taken its attempt up.
  void OnHello(int rank) { silent_.erase(rank); }
  // A rank has ended, or has been kept.
  void OnEnd(int rank);
  // The attempt has failed by the loss of another rank. Ends those that cannot stay, by SIGTERM.
  // Gives whether others are left: these get no signal yet, because they find by themselves that
  // another one is lost, and then ask to stay.
  bool AwaitStays();
  // A process that lost others, or has saved, asks to stay (kStays). Gives the rank's end if it is
  // kept: for the job it ends then, while its process goes on. `may_keep`: the ranks are not being
  // killed.
  std::optional<RankEnd> OnStays(const AgentMessage& message, bool may_keep);
  // Answers the ranks that have saved and ask to stay. Gives the ends of those that are kept.
  enum class StopNews { kNone, kJobGoesOn, kJobEnds };
  std::vector<RankEnd> AnswerSaved(StopNews news);
  // Removes a process that has not taken its attempt up in time. Gives its slot, which needs a new
  // one; nothing: there is none.
  std::optional<RankSlot> RemoveSilent();
  // To be called again and again while all ranks train. Starts a process that waits with its
  // libraries loaded, once and if one is wanted. Gives whether it has done so now.
  bool KeepReserve();

 private:
  bool StartSurvivor(const RankSlot& slot, const Environment& environment);
  bool StartFromReserve(const RankSlot& slot, const Environment& environment);
  bool GiveAttempt(pid_t pid, const RankSlot& slot, NextAttempt next);
  RankEnd Keep(const RankSlot& slot, int exit_code);
  bool RunsItself(int rank) const;

  const Attempt& attempt_;
  const SupervisorLimits& limits_;
  AgentSocket& socket_;
  Reporter& reporter_;
  Processes& processes_;
  Survivors* const survivors_;
  std::map<int, Deadline> silent_;      // Ranks with a process of before that has not said hello.
  std::map<int, Deadline> saved_;       // Ranks that ask to stay after a stop signal and a save.
  std::optional<Deadline> reserve_at_;  // Set by the first call of KeepReserve.
  bool reserve_tried_ = false;
};

}  // namespace dtrain::launcher
