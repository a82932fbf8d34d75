// A supervisor reuses processes: those that stayed get a place in its attempt, and its own may stay
// for the next one. It also starts a process ahead of the loss of a rank, if it is told to.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
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
  if (!GiveAttempt(*pid, slot, {.environment = AttemptVariables(environment)})) {
    return false;
  }
  parts_.reporter.Event("reuse", {{"rank", slot.rank}, {"pid", *pid}});
  return true;
}

bool Supervisor::StartFromReserve(const RankSlot& slot, const Environment& environment) {
  if (parts_.survivors == nullptr) {
    return false;
  }
  const std::optional<Survivors::Reserve> reserve = parts_.survivors->TakeReserve(environment);
  if (!reserve.has_value() || !GiveAttempt(reserve->pid, slot,
                                           {.environment = reserve->variables,
                                            .cpus = slot.cpus,
                                            .memory_node = slot.memory_node})) {
    return false;
  }
  parts_.reporter.Event("reserve_taken", {{"rank", slot.rank}, {"pid", reserve->pid}});
  return true;
}

// The process belongs to the caller. Gives whether it takes the attempt up; otherwise it is
// removed.
bool Supervisor::GiveAttempt(pid_t pid, const RankSlot& slot, NextAttempt next) {
  next.out_path = attempt_.LogPath(slot.rank, "out");
  next.err_path = attempt_.LogPath(slot.rank, "err");
  if (!parts_.socket.SendOrder(pid, next.Encode())) {
    parts_.survivors->Remove(pid);  // It has ended, or does not listen.
    return false;
  }
  processes_.Adopt(pid, slot.rank);
  reused_.insert_or_assign(slot.rank, Deadline::After(limits_.reuse));
  return true;
}

// A process that lost others stays. For one that was stopped with a save it depends on why.
void Supervisor::OnStay(const AgentMessage& message) {
  const bool is_saved = message.exit_code == kExitTerminated;
  const auto slot =
      std::find_if(attempt_.slots.begin(), attempt_.slots.end(),
                   [&](const RankSlot& candidate) { return candidate.rank == message.rank; });
  // A process that a rank's script started says it under another pid, and cannot be kept.
  const bool can_be_kept = parts_.survivors != nullptr && slot != attempt_.slots.end() &&
                           phase_ != Phase::kKilled &&
                           processes_.PidOf(message.rank) == message.pid;
  if (can_be_kept && is_saved) {
    saved_.insert_or_assign(message.rank, Deadline::After(limits_.news));
  } else if (can_be_kept) {
    Keep(*slot, message.exit_code);
  } else if (is_saved) {
    parts_.socket.SendOrder(message.pid, kEndOrder);  // No signal will end it.
  }
}

// A rank ends for the job when it stays: its process alone goes on.
void Supervisor::Keep(const RankSlot& slot, int exit_code) {
  RankEnd end;
  end.rank = slot.rank;
  end.pid = processes_.Release(slot.rank);
  end.exit_code = exit_code;
  parts_.survivors->Keep({end.pid, slot, attempt_.EnvironmentOf(slot)});
  NoteEnd(std::move(end), /*is_kept=*/true);
}

// All ranks stop at the first stop signal on any node, so a rank may have saved before this agent
// hears of it. It waits for that news, because it ends if it was the user who stopped the job.
void Supervisor::AnswerSaved() {
  for (const RankSlot& slot : attempt_.slots) {
    const auto saved = saved_.find(slot.rank);
    if (saved == saved_.end()) {
      continue;
    }
    const bool has_news = result_.stop.signal != 0 || phase_ != Phase::kRunning;
    if (job_goes_on_ && phase_ == Phase::kRunning) {
      Keep(slot, kExitTerminated);
    } else if (has_news || saved->second.Expired()) {
      saved_.erase(saved);
      parts_.socket.SendOrder(processes_.PidOf(slot.rank), kEndOrder);
    }
  }
}

// Whether the process of `rank` is the program itself, and waits for orders: a script would do its
// work once more if it were started without a rank.
bool Supervisor::RunsItself(int rank) const {
  const pid_t pid = processes_.PidOf(rank);
  std::error_code error;
  return pid > 0 && parts_.socket.CanStay(pid) &&
         std::filesystem::equivalent(absl::StrCat("/proc/", pid, "/exe"), attempt_.program, error);
}

// Starts a process that waits with its libraries loaded, once the attempt is under way: it would
// hold the ranks up while they start.
void Supervisor::KeepReserve() {
  if (!attempt_.reserve || parts_.survivors == nullptr || reserve_tried_ ||
      parts_.survivors->reserve_pid() > 0 || phase_ != Phase::kRunning ||
      result_.stop.signal != 0 || settle_.has_value()) {
    return;
  }
  const bool all_step = std::all_of(attempt_.slots.begin(), attempt_.slots.end(),
                                    [this](const RankSlot& slot) { return RunsItself(slot.rank); });
  if (!all_step || !ranks_.AllTrain()) {
    return;
  }
  if (!reserve_at_.has_value()) {
    reserve_at_ = Deadline::After(limits_.reserve);
  }
  if (!reserve_at_->Expired()) {
    return;
  }
  reserve_tried_ = true;
  const absl::StatusOr<pid_t> pid = StartReserve(attempt_, parts_.guard, *parts_.survivors);
  if (!pid.ok()) {
    parts_.reporter.Say(std::string(pid.status().message()));
    return;
  }
  processes_.Spare(*pid);
  parts_.peers.TellReserve();
}

absl::StatusOr<pid_t> StartReserve(const Attempt& attempt, const Guard& guard,
                                   Survivors& survivors) {
  Environment environment = ReserveEnvironment(attempt.EnvironmentOf(attempt.slots.front()));
  SpawnRequest request = attempt.RequestWith(environment);
  request.out_path = request.err_path = "/dev/null";  // Until it has a rank's place.
  request.guard_fd = guard.watch_fd();
  const absl::StatusOr<pid_t> pid = Spawn(request);
  if (pid.ok()) {
    survivors.KeepReserve(*pid, std::move(environment));
  }
  return pid.ok() ? pid : Annotate(pid.status(), "no process is kept in reserve");
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
    if (absl::Status started = StartRank(slot); !started.ok()) {
      CannotStart(std::move(started));
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
