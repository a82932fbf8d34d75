#include "launcher/ranks/rank_reuse.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "launcher/ranks/reuse_plan.h"

namespace dtrain::launcher {

RankReuse::RankReuse(const Attempt& attempt, const SupervisorLimits& limits, AgentSocket& socket,
                     Reporter& reporter, Processes& processes, Survivors* survivors)
    : attempt_(attempt),
      limits_(limits),
      socket_(socket),
      reporter_(reporter),
      processes_(processes),
      survivors_(survivors) {}

void RankReuse::Begin() {
  if (survivors_ == nullptr) {
    return;
  }
  socket_.ReceiveAll();  // Messages of the attempt before say nothing of this one.
  if (const pid_t reserve = survivors_->reserve_pid(); reserve > 0) {
    processes_.Spare(reserve);  // RemoveAll spares it also if a rank cannot be started.
  }
}

bool RankReuse::Start(const RankSlot& slot, const Environment& environment) {
  return survivors_ != nullptr &&
         (StartSurvivor(slot, environment) || StartFromReserve(slot, environment));
}

void RankReuse::RemoveRest() {
  if (survivors_ != nullptr) {
    survivors_->RemoveKept();
  }
}

bool RankReuse::StartSurvivor(const RankSlot& slot, const Environment& environment) {
  const std::optional<pid_t> pid = survivors_->Take(slot, environment);
  if (!pid.has_value() ||
      !GiveAttempt(*pid, slot, {.environment = AttemptVariables(environment)})) {
    return false;
  }
  reporter_.Event("reuse", {{"rank", slot.rank}, {"pid", *pid}});
  return true;
}

bool RankReuse::StartFromReserve(const RankSlot& slot, const Environment& environment) {
  const std::optional<Survivors::Reserve> reserve = survivors_->TakeReserve(environment);
  if (!reserve.has_value() || !GiveAttempt(reserve->pid, slot,
                                           {.environment = reserve->variables,
                                            .cpus = slot.cpus,
                                            .memory_node = slot.memory_node})) {
    return false;
  }
  reporter_.Event("reserve_taken", {{"rank", slot.rank}, {"pid", reserve->pid}});
  return true;
}

// The process belongs to the caller. Gives whether it takes the attempt up; otherwise it is
// removed.
bool RankReuse::GiveAttempt(pid_t pid, const RankSlot& slot, NextAttempt next) {
  next.out_path = attempt_.LogPath(slot.rank, "out");
  next.err_path = attempt_.LogPath(slot.rank, "err");
  if (!socket_.SendOrder(pid, next.Encode())) {
    survivors_->Remove(pid);  // It has ended, or does not listen.
    return false;
  }
  processes_.Adopt(pid, slot.rank);
  silent_.insert_or_assign(slot.rank, Deadline::After(limits_.reuse));
  return true;
}

void RankReuse::OnCanStay(const AgentMessage& message) {
  if (survivors_ != nullptr && message.pid == survivors_->reserve_pid()) {
    reporter_.Event("reserve", {{"pid", message.pid}});
  }
}

void RankReuse::OnEnd(int rank) {
  silent_.erase(rank);
  saved_.erase(rank);
}

// A process that lost others stays. For one that was stopped with a save it depends on why.
std::optional<RankEnd> RankReuse::OnStays(const AgentMessage& message, bool may_keep) {
  const bool is_saved = message.exit_code == kExitTerminated;
  const auto slot =
      std::find_if(attempt_.slots.begin(), attempt_.slots.end(),
                   [&](const RankSlot& candidate) { return candidate.rank == message.rank; });
  // A process that a rank's script started says it under another pid, and cannot be kept.
  const bool can_be_kept = survivors_ != nullptr && slot != attempt_.slots.end() && may_keep &&
                           processes_.PidOf(message.rank) == message.pid;
  if (can_be_kept && !is_saved) {
    return Keep(*slot, message.exit_code);
  }
  if (can_be_kept) {
    saved_.insert_or_assign(message.rank, Deadline::After(limits_.news));
  } else if (is_saved) {
    socket_.SendOrder(message.pid, kEndOrder);  // No signal will end it.
  }
  return std::nullopt;
}

RankEnd RankReuse::Keep(const RankSlot& slot, int exit_code) {
  RankEnd end;
  end.rank = slot.rank;
  end.pid = processes_.Release(slot.rank);
  end.exit_code = exit_code;
  survivors_->Keep({end.pid, slot, attempt_.EnvironmentOf(slot)});
  return end;
}

// All ranks stop at the first stop signal on any node, so a rank may have saved before this agent
// hears of it. It waits for that news, because it ends if it was the user who stopped the job.
std::vector<RankEnd> RankReuse::AnswerSaved(StopNews news) {
  std::vector<RankEnd> kept;
  for (const RankSlot& slot : attempt_.slots) {
    const auto saved = saved_.find(slot.rank);
    if (saved == saved_.end()) {
      continue;
    }
    if (news == StopNews::kJobGoesOn) {
      kept.push_back(Keep(slot, kExitTerminated));
    } else if (news == StopNews::kJobEnds || saved->second.Expired()) {
      socket_.SendOrder(processes_.PidOf(slot.rank), kEndOrder);
    } else {
      continue;
    }
    saved_.erase(saved);
  }
  return kept;
}

std::optional<RankSlot> RankReuse::RemoveSilent() {
  for (const RankSlot& slot : attempt_.slots) {
    const auto silent = silent_.find(slot.rank);
    if (silent == silent_.end() || !silent->second.Expired() || processes_.PidOf(slot.rank) < 0) {
      continue;
    }
    silent_.erase(silent);
    survivors_->Remove(processes_.Release(slot.rank));
    reporter_.Say(absl::StrCat("the process that was to be rank ", slot.rank,
                               " again does not answer; a new one takes its place"));
    return slot;
  }
  return std::nullopt;
}

// Whether the process of `rank` is the program itself, and waits for orders: a script would do its
// work once more if it were started without a rank.
bool RankReuse::RunsItself(int rank) const {
  const pid_t pid = processes_.PidOf(rank);
  std::error_code error;
  return pid > 0 && socket_.CanStay(pid) &&
         std::filesystem::equivalent(absl::StrCat("/proc/", pid, "/exe"), attempt_.program, error);
}

bool RankReuse::AwaitStays() {
  bool any = false;
  for (const int rank : processes_.AliveRanks()) {
    if (socket_.CanStay(processes_.PidOf(rank))) {
      any = true;
    } else {
      processes_.SignalRank(rank, SIGTERM);
    }
  }
  return any;
}

bool RankReuse::KeepReserve() {
  const bool is_wanted = attempt_.reserve && survivors_ != nullptr && !reserve_tried_ &&
                         survivors_->reserve_pid() <= 0;
  if (!is_wanted || !std::all_of(attempt_.slots.begin(), attempt_.slots.end(),
                                 [this](const RankSlot& slot) { return RunsItself(slot.rank); })) {
    return false;
  }
  if (!reserve_at_.has_value()) {
    reserve_at_ = Deadline::After(limits_.reserve);
  }
  if (!reserve_at_->Expired()) {
    return false;
  }
  reserve_tried_ = true;
  if (const absl::Status started = survivors_->StartReserve(attempt_); !started.ok()) {
    reporter_.Say(std::string(started.message()));
    return false;
  }
  processes_.Spare(survivors_->reserve_pid());
  return true;
}

}  // namespace dtrain::launcher
