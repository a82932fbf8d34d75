// A supervisor reuses processes: those that stayed get a place in its attempt, and its own may stay
// for the next one.
#include <csignal>

#include "absl/strings/str_cat.h"
#include "base/next_attempt.h"
#include "base/status.h"
#include "launcher/ranks/reuse_plan.h"
#include "launcher/ranks/supervisor.h"

namespace dtrain::launcher {

bool Supervisor::StartSurvivor(const RankSlot& slot, const Environment& environment) {
  if (parts_.survivors == nullptr) {
    return false;
  }
  const std::optional<pid_t> pid = parts_.survivors->Take(slot, environment);
  if (!pid.has_value()) {
    return false;
  }
  const NextAttempt next{.environment = AttemptVariables(environment),
                         .out_path = LogPath(attempt_.log_dir, slot.rank, "out"),
                         .err_path = LogPath(attempt_.log_dir, slot.rank, "err")};
  if (!parts_.socket.SendOrder(*pid, next.Encode())) {
    parts_.survivors->Remove(*pid);  // It has ended, or does not listen.
    return false;
  }
  processes_.Adopt(*pid, slot.rank);
  reused_.insert_or_assign(slot.rank, Deadline::After(limits_.reuse));
  parts_.reporter.Event("reuse", {{"rank", slot.rank}, {"pid", *pid}});
  return true;
}

// A rank ends for the job when it stays: its process alone goes on.
void Supervisor::OnStay(const AgentMessage& message) {
  const RankSlot* slot = nullptr;
  for (const RankSlot& candidate : attempt_.slots) {
    slot = candidate.rank == message.rank ? &candidate : slot;
  }
  // A process that a rank's script started says it under another pid, and cannot be kept.
  if (parts_.survivors == nullptr || slot == nullptr || phase_ == Phase::kKilled ||
      processes_.PidOf(message.rank) != message.pid) {
    return;
  }
  RankEnd end;
  end.rank = message.rank;
  end.pid = processes_.Release(message.rank);
  end.exit_code = message.exit_code;
  parts_.survivors->Keep(
      {end.pid, *slot, RankEnvironment(attempt_.environment, attempt_.shape, *slot)});
  NoteEnd(std::move(end), /*is_kept=*/true);
}

// A process that has not taken its attempt up in time is replaced by a new one.
void Supervisor::ReplaceSilent() {
  if (phase_ != Phase::kRunning || parts_.survivors == nullptr) {
    return;
  }
  for (const RankSlot& slot : attempt_.slots) {
    const auto silent = reused_.find(slot.rank);
    if (silent == reused_.end() || !silent->second.Expired() || processes_.PidOf(slot.rank) < 0) {
      continue;
    }
    reused_.erase(silent);
    parts_.survivors->Remove(processes_.Release(slot.rank));
    parts_.reporter.Say(absl::StrCat("the process that was to be rank ", slot.rank,
                                     " again does not answer; a new one takes its place"));
    if (const absl::Status started = StartRank(slot); !started.ok()) {
      result_.error = started;
      StopRanks(std::string(started.message()));
      return;
    }
  }
}

// Gives whether ranks are left that may stay: then these get no signal yet, because they find by
// themselves that another one is lost.
bool Supervisor::AwaitStays() {
  const RankEnd* const cause = RootCause(result_.ends, result_.stop);
  if (parts_.survivors == nullptr || result_.stop.signal != 0 || !MayReuse(cause, result_.error)) {
    return false;
  }
  if (cause != nullptr && !cause->hang.empty() && processes_.PidOf(cause->rank) >= 0) {
    killed_.push_back(cause->rank);
    processes_.SignalRank(cause->rank, SIGKILL);
  }
  bool any = false;
  for (const int rank : processes_.AliveRanks()) {
    if (parts_.socket.CanStay(processes_.PidOf(rank))) {
      any = true;
    } else {
      processes_.SignalRank(rank, SIGTERM);
    }
  }
  if (any) {
    stay_ = Deadline::After(limits_.stay);
  }
  return any;
}

}  // namespace dtrain::launcher
