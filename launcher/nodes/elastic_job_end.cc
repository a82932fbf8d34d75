// How the attempts of an elastic job end, and whether others follow.
#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "launcher/nodes/elastic_job.h"
#include "launcher/restart.h"

namespace dtrain::launcher {

bool StopsJob(int signal, int number) {
  return number == 0 || (signal != SIGTERM && signal != SIGUSR1);
}

// Whether the failures may come from a node of whose loss the news has not come yet.
bool ElasticJob::MayBeLoss() const {
  if (!attempt_.lost.empty() || phase_ == Phase::kEnding) {
    return false;
  }
  const std::optional<RankEnd> cause = Cause();
  return cause.has_value() ? MayBeVictim(*cause) : CodeOfAttempt() == kExitTemporary;
}

// The nodes of the attempt that have reported its end, by node rank. What one said counts also if
// its agent is gone before the others have reported.
std::vector<const ElasticJob::Member*> ElasticJob::Reporters() const {
  std::vector<const Member*> reporters;
  for (const int id : attempt_.world) {
    const auto member = members_.find(id);
    const auto gone = attempt_.gone.find(id);
    if (member != members_.end() && member->second.report.has_value()) {
      reporters.push_back(&member->second);
    } else if (gone != attempt_.gone.end()) {
      reporters.push_back(&gone->second);
    }
  }
  return reporters;
}

// Whether the rank of `cause` was one of a node that is lost by now. Its agent has told the others
// of it before, so it did not fail because of the loss.
bool ElasticJob::IsOfLostNode(const RankEnd& cause) const {
  const auto node = static_cast<size_t>(cause.node);
  return node < attempt_.world.size() && members_.count(attempt_.world[node]) == 0;
}

// The code of the first node whose ranks did not end with 0. One that says more than that a node
// was lost or stopped goes before the others. An attempt of which nobody has reported was lost.
int ElasticJob::CodeOfAttempt() const {
  const std::vector<const Member*> reporters = Reporters();
  int code = reporters.empty() ? kExitTemporary : kExitOk;
  for (const Member* member : reporters) {
    const int other = member->report->code;
    code = code == kExitOk || (code == kExitTemporary && other != kExitOk) ? other : code;
  }
  return code;
}

// A signal that ended the attempt on a node, or 0. The orders of planned ends are signals too.
int ElasticJob::SignalOfAttempt() const {
  for (const Member* member : Reporters()) {
    if (member->report->stop_signal != 0) {
      return member->report->stop_signal;
    }
  }
  return 0;
}

bool ElasticJob::JobWasStopped() const {
  const std::vector<const Member*> members = Reporters();
  return stop_signal_ != 0 || std::any_of(members.begin(), members.end(), [](const auto* member) {
           return member->report->stopped_here &&
                  StopsJob(member->report->stop_signal, member->node.number);
         });
}

std::optional<RankEnd> ElasticJob::Cause() const {
  std::vector<RankEnd> ends;
  for (const Member* member : Reporters()) {
    if (member->report->cause.has_value()) {
      ends.push_back(*member->report->cause);
    }
  }
  const RankEnd* const cause = RootCause(ends, StopRequest{.signal = SignalOfAttempt()});
  return cause == nullptr ? std::nullopt : std::optional<RankEnd>(*cause);
}

void ElasticJob::Conclude(int64_t now) {
  const int code = CodeOfAttempt();
  const bool was_stopped = JobWasStopped();
  const std::optional<RankEnd> cause = Cause();
  const bool has_failed = cause.has_value() && !MayBeVictim(*cause);
  const bool is_planned =
      (attempt_.is_planned || SignalOfAttempt() != 0) && attempt_.lost.empty() && !has_failed;
  int64_t durable = failures_.durable_step;
  for (auto& [id, member] : members_) {
    if (member.report.has_value()) {
      durable = std::max(durable, member.report->durable_step);
      if (!was_stopped && member.report->stopped_here &&
          !StopsJob(member.report->stop_signal, member.node.number)) {
        member.leaving = true;
        member.leave_code = kExitTerminated;
        why_ = absl::StrCat(member.node.Name(), " was told to stop");
      }
    }
  }
  const bool has_progress = durable > failures_.durable_step;
  failures_.durable_step = durable;
  failures_.alike = has_progress ? 0 : failures_.alike;
  if (has_progress) {
    ForgetFailures();
  }
  if (code == kExitOk) {
    End(kExitOk, "");
  } else if (was_stopped) {
    End(stop_signal_ == SIGINT ? static_cast<int>(kExitInterrupted) : code, "");
  } else if (!SetFailedHostsAside(cause, now)) {
    if (is_planned) {
      WaitUntil(now, why_);
    } else {
      DecideRestart(cause, has_progress, now);
    }
  }
  DismissLeavers();
  TryStart(now);
}

void ElasticJob::DecideRestart(const std::optional<RankEnd>& cause, bool has_progress,
                               int64_t now) {
  RestartInput input;
  // An error of the program comes again on the nodes that are left.
  const bool is_error = cause.has_value() && IsOfLostNode(*cause) && IsProgramsError(*cause);
  input.node_lost = !attempt_.lost.empty() && !is_error;
  input.cause = cause.value_or(RankEnd{.exit_code = CodeOfAttempt()});
  const std::string failure = input.node_lost
                                  ? absl::StrCat("lost: ", absl::StrJoin(attempt_.lost, ", "))
                                  : DescribeEnd(input.cause);
  if (!has_progress) {
    failures_.alike = failure == failures_.last ? failures_.alike + 1 : 1;
  }
  failures_.last = failure;
  input.restarts_max = options_.restarts_max;
  input.restarts_used = failures_.restarts_used;
  input.bug_restarts_used = failures_.bug_restarts_used;
  input.without_progress = failures_.alike;
  const RestartPlan plan = RestartDecision(input);
  if (!plan.restart) {
    const bool is_worth_saying = options_.restarts_max > 0 || input.node_lost;
    End(plan.exit_code, is_worth_saying ? absl::StrCat("no restart: ", plan.reason) : "");
    return;
  }
  failures_.bug_restarts_used += !input.node_lost && CodeOf(input.cause) == kExitBug ? 1 : 0;
  failures_.restarts_used += input.node_lost ? 0 : 1;
  WaitUntil(now + absl::ToInt64Nanoseconds(plan.wait),
            input.node_lost ? absl::StrCat(why_, "; ", plan.reason) : plan.reason);
}

}  // namespace dtrain::launcher
