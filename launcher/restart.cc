#include "launcher/restart.h"

#include <csignal>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace dtrain::launcher {
namespace {

// A binary for another CPU or an arithmetic trap fails the same way again.
bool IsFinalSignal(int signal) {
  return signal == SIGILL || signal == SIGFPE || signal == SIGSYS || signal == SIGINT;
}

// Why a restart would not help; "" when it may.
std::string WhyNot(const RestartInput& input) {
  const RankEnd& cause = input.cause;
  if (cause.signal != 0) {
    return IsFinalSignal(cause.signal)
               ? absl::StrCat("a rank that ", SignalName(cause.signal), " ended is not restarted")
               : "";
  }
  switch (cause.exit_code) {
    case kExitTemporary:
      return "";
    case kExitBug:
      return input.bug_restarts_used == 0 ? "" : "exit code 70 is restarted only once";
    default:
      return absl::StrFormat("exit code %d is not restarted", cause.exit_code);
  }
}

}  // namespace

bool IsProgramsError(const RankEnd& end) {
  const int code = CodeOf(end);
  const bool is_stop = code == kExitInterrupted || code == kExitTerminated;
  return FailedByItself(end) && !is_stop && !WhyNot({.cause = end}).empty();
}

RestartPlan RestartDecision(const RestartInput& input) {
  RestartPlan plan;
  plan.exit_code = input.node_lost ? static_cast<int>(kExitTemporary) : CodeOf(input.cause);
  if (!input.node_lost && input.restarts_max == 0) {
    plan.reason = "--max-restarts is 0";
    return plan;
  }
  plan.reason = input.node_lost ? "" : WhyNot(input);
  if (!plan.reason.empty()) {
    return plan;
  }
  if (input.without_progress >= kAttemptsWithoutProgressMax) {
    plan.exit_code = kExitStop;
    plan.reason = absl::StrFormat("%d attempts in a row without a new committed checkpoint",
                                  input.without_progress);
    return plan;
  }
  if (!input.node_lost && input.restarts_used >= input.restarts_max) {
    plan.reason = absl::StrFormat("all %d restarts of --max-restarts are used", input.restarts_max);
    return plan;
  }
  plan.restart = true;
  plan.wait = absl::Seconds(input.without_progress);
  plan.reason = input.node_lost ? "the job goes on without it"
                                : absl::StrFormat("restart %d of %d", input.restarts_used + 1,
                                                  input.restarts_max);
  return plan;
}

}  // namespace dtrain::launcher
