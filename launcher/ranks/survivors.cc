#include "launcher/ranks/survivors.h"

#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/clock.h"
#include "base/deadline.h"
#include "base/status.h"

namespace dtrain::launcher {

std::optional<pid_t> Survivors::Take(const RankSlot& slot, const Environment& environment) {
  const auto kept = std::find_if(kept_.begin(), kept_.end(), [&](const KeptRank& candidate) {
    return WhyNotReused(candidate, slot, environment).empty();
  });
  if (kept == kept_.end()) {
    return std::nullopt;
  }
  const pid_t pid = kept->pid;
  kept_.erase(kept);
  return pid;
}

void Survivors::Remove(pid_t pid) {
  constexpr absl::Duration kRemoval = absl::Seconds(1);
  const Deadline deadline = Deadline::After(kRemoval);
  kill(-pid, SIGKILL);
  while (waitpid(pid, nullptr, WNOHANG) == 0 && !deadline.Expired()) {
    Clock::Real().Sleep(absl::Milliseconds(1));
  }
  // As long as a process of the group is left, the guard has to know it.
  if (kill(-pid, 0) != 0) {
    guard_.Forget(pid);
  }
}

void Survivors::RemoveKept() {
  for (const KeptRank& kept : std::exchange(kept_, {})) {
    Remove(kept.pid);
  }
}

void Survivors::RemoveAll() {
  RemoveKept();
  if (const pid_t pid = std::exchange(reserve_, {}).pid; pid > 0) {
    Remove(pid);
  }
}

absl::Status Survivors::StartReserve(const Attempt& attempt) {
  Environment environment = ReserveEnvironment(attempt.EnvironmentOf(attempt.slots.front()));
  SpawnRequest request = attempt.RequestWith(environment);
  request.out_path = request.err_path = "/dev/null";  // Until it has a rank's place.
  request.guard_fd = guard_.watch_fd();
  const absl::StatusOr<pid_t> pid = Spawn(request);
  DT_RETURN_IF_ERROR(Annotate(pid.status(), "no process is kept in reserve"));
  reserve_ = {*pid, std::move(environment)};
  return absl::OkStatus();
}

std::optional<Survivors::Reserve> Survivors::TakeReserve(const Environment& environment) {
  if (reserve_.pid < 0) {
    return std::nullopt;
  }
  const std::optional<Environment> variables = VariablesForReserve(reserve_.variables, environment);
  if (!variables.has_value()) {
    return std::nullopt;
  }
  return Reserve{std::exchange(reserve_, {}).pid, *variables};
}

}  // namespace dtrain::launcher
