#include "launcher/restart.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/backoff.h"
#include "base/status.h"
#include "base/text/text.h"

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

std::string HostTrouble(absl::string_view error) {
  for (const int number : {ENOSPC, EDQUOT, EROFS, EACCES, EIO}) {
    std::string text = std::generic_category().message(number);  // As ErrnoStatus has it.
    if (absl::StrContains(error, text)) {
      return text;
    }
  }
  return "";
}

const RankEnd* CauseToReport(const std::vector<RankEnd>& ends, const StopRequest& stop) {
  const RankEnd* const root = RootCause(ends, stop);
  if (root == nullptr || !MayBeVictim(*root)) {
    return root;
  }
  const auto in_trouble = std::find_if(ends.begin(), ends.end(), [](const RankEnd& end) {
    return FailedByItself(end) && !HostTrouble(end.error).empty();
  });
  return in_trouble == ends.end() ? root : &*in_trouble;
}

int RankInTrouble(absl::string_view error, int own) {
  constexpr absl::string_view kRank = "rank ";
  const size_t trouble = error.find(HostTrouble(error));
  int rank = own;
  for (size_t at = error.find(kRank); at < trouble; at = error.find(kRank, at + 1)) {
    const absl::string_view rest = error.substr(at + kRank.size());
    int named = 0;
    if (absl::SimpleAtoi(rest.substr(0, rest.find_first_not_of("0123456789")), &named)) {
      rank = named;
    }
  }
  return rank;
}

std::string Shortened(const std::string& error) {
  constexpr size_t kBytesMax = 300;
  constexpr absl::string_view kGap = " ... ";
  constexpr size_t kPart = (kBytesMax - kGap.size()) / 2;
  if (error.size() <= kBytesMax) {
    return error;
  }
  // A part neither ends nor begins inside a character.
  const auto goes_on = [&error](size_t at) {
    return at < error.size() && IsContinuation(error[at]);
  };
  size_t front = kPart;
  while (front > 0 && goes_on(front)) {
    --front;
  }
  size_t back = error.size() - kPart;
  while (goes_on(back)) {
    ++back;
  }
  return absl::StrCat(error.substr(0, front), kGap, error.substr(back));
}

HostFailures WithFailure(const HostFailures& before, const std::string& cause,
                         const std::string& error) {
  return {cause, Shortened(error), before.times + 1};
}

AsidePlan PlanAside(const HostFailures& failures) {
  constexpr Backoff kAside{.first = absl::Seconds(10), .factor = 3, .longest = absl::Hours(1)};
  return {.wait = kAside.After(failures.times),
          .leaves = failures.times >= kAttemptsWithoutProgressMax};
}

}  // namespace dtrain::launcher
