#include "launcher/ranks/reuse_plan.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status.h"

namespace dtrain::launcher {
namespace {

// LOCAL_RANK chooses the GPU, and LOCAL_WORLD_SIZE the shares of memory and cores, once.
constexpr std::array<absl::string_view, 16> kOfAttempt = {
    "RANK",          "WORLD_SIZE",          "GROUP_RANK",
    "ROLE_RANK",     "ROLE_WORLD_SIZE",     "GROUP_WORLD_SIZE",
    "MASTER_ADDR",   "MASTER_PORT",         "TORCHELASTIC_RESTART_COUNT",
    env::kRunId,     "TORCHELASTIC_RUN_ID", env::kAttempt,
    env::kBeginsJob, env::kStore,           env::kHost,
    env::kNodeId,
};

// LibTorch's libraries read these when they are loaded.
constexpr std::array<absl::string_view, 5> kReadWhenLoaded = {
    "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_AFFINITY", "LD_LIBRARY_PATH",
};

std::string ValueOf(const Environment& environment, absl::string_view name) {
  const auto found = environment.find(std::string(name));
  return found == environment.end() ? "" : found->second;
}

bool IsOfAttempt(const std::string& name) {
  return std::find(kOfAttempt.begin(), kOfAttempt.end(), name) != kOfAttempt.end();
}

// The first variable that only one has, or that differs, and that a process keeps; "": none.
std::string FirstDifference(const Environment& was, const Environment& now) {
  for (const auto& [name, value] : was) {
    const auto found = now.find(name);
    if (!IsOfAttempt(name) && (found == now.end() || found->second != value)) {
      return name;
    }
  }
  for (const auto& [name, value] : now) {
    if (!IsOfAttempt(name) && was.count(name) == 0) {
      return name;
    }
  }
  return "";
}

}  // namespace

bool MayReuse(const RankEnd* cause, const absl::Status& error) {
  if (cause == nullptr) {
    return absl::IsUnavailable(error);  // A node is lost.
  }
  if (!cause->hang.empty()) {
    return true;
  }
  switch (cause->signal) {
    case 0:
      return cause->exit_code == kExitTemporary;
    case SIGILL:  // These end the job: see RestartDecision.
    case SIGFPE:
    case SIGSYS:
    case SIGINT:
      return false;
    default:
      return true;
  }
}

std::string WhyNotReused(const KeptRank& kept, const RankSlot& slot,
                         const Environment& environment) {
  if (kept.slot.local_rank != slot.local_rank) {
    return absl::StrCat("it had local rank ", kept.slot.local_rank);
  }
  if (kept.slot.cpus != slot.cpus || kept.slot.memory_node != slot.memory_node) {
    return "it is bound to other cores or memory";
  }
  const std::string variable = FirstDifference(kept.environment, environment);
  return variable.empty() ? "" : absl::StrCat(variable, " has changed");
}

Environment AttemptVariables(const Environment& environment) {
  Environment variables;
  for (const auto& [name, value] : environment) {
    if (IsOfAttempt(name)) {
      variables.emplace(name, value);
    }
  }
  return variables;
}

Environment ReserveEnvironment(Environment of_rank) {
  for (const absl::string_view name : kOfAttempt) {
    of_rank.erase(std::string(name));
  }
  of_rank.erase("LOCAL_RANK");
  of_rank.erase("LOCAL_WORLD_SIZE");
  of_rank[env::kReuse] = env::kReserveProcess;
  return of_rank;
}

std::optional<Environment> VariablesForReserve(const Environment& reserve,
                                               const Environment& environment) {
  for (const absl::string_view name : kReadWhenLoaded) {
    if (ValueOf(reserve, name) != ValueOf(environment, name)) {
      return std::nullopt;
    }
  }
  Environment variables;
  for (const auto& [name, value] : environment) {
    const auto has = reserve.find(name);
    if (has == reserve.end() || has->second != value) {
      variables.emplace(name, value);
    }
  }
  const bool keeps_more = std::any_of(reserve.begin(), reserve.end(), [&](const auto& entry) {
    return environment.count(entry.first) == 0;
  });
  return keeps_more ? std::nullopt : std::optional<Environment>(std::move(variables));
}

}  // namespace dtrain::launcher
