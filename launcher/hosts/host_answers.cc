#include "launcher/hosts/host_answers.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/backoff.h"
#include "base/status.h"
#include "base/text/text.h"
#include "comm/net/socket.h"

namespace dtrain::launcher {
namespace {

// Why this host cannot start; "": it can.
std::string ProblemOf(const HostAnswer& answer, const std::string& own_version) {
  if (!answer.silence.empty()) {
    return WhySilent(answer);
  }
  if (answer.hello.version != own_version) {
    return absl::StrFormat("it has dtrain %s, this host %s; install the same on both",
                           answer.hello.version, own_version);
  }
  return answer.hello.error;
}

// FailedPrecondition when the hosts have different files for the program.
absl::Status CheckPrograms(const std::vector<HostAnswer>& answers) {
  std::map<std::string, std::vector<std::string>> hosts_of;
  for (const HostAnswer& answer : answers) {
    hosts_of[answer.hello.digest].push_back(answer.host);
  }
  if (hosts_of.size() == 1) {
    return absl::OkStatus();
  }
  std::vector<std::string> groups;
  for (const auto& [digest, hosts] : hosts_of) {
    groups.push_back(absl::StrCat(Printable(digest), " on ", absl::StrJoin(hosts, ", ")));
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "the program %s is not the same on all hosts: %s; nothing was started; copy one file to all",
      Printable(answers.front().hello.program), absl::StrJoin(groups, "; ")));
}

}  // namespace

std::string WhySilent(const HostAnswer& answer) {
  return answer.ssh_from.empty()
             ? answer.silence
             : absl::StrCat(answer.silence, " (ssh ran on host ", answer.ssh_from, ")");
}

std::string FanoutHint(const std::vector<HostAnswer>& answers) {
  const bool from_others = std::any_of(answers.begin(), answers.end(), [](const auto& answer) {
    return !answer.silence.empty() && !answer.ssh_from.empty();
  });
  return from_others
             ? "; if hosts may not log in to each other, --ssh-fanout 0 starts all from here"
             : "";
}

absl::Status CheckAnswers(const std::vector<HostAnswer>& answers, const std::string& own_version) {
  std::vector<std::string> problems;
  std::vector<std::string> hosts;
  bool some_silent = false;
  for (const HostAnswer& answer : answers) {
    if (const std::string problem = ProblemOf(answer, own_version); !problem.empty()) {
      problems.push_back(absl::StrCat(answer.host, ": ", Printable(problem)));
      hosts.push_back(answer.host);
      some_silent = some_silent || !answer.silence.empty();
    }
  }
  if (problems.empty()) {
    return CheckPrograms(answers);
  }
  std::string message =
      absl::StrFormat("%d of %d hosts cannot start: %s; nothing was started", problems.size(),
                      answers.size(), absl::StrJoin(problems, "; "));
  if (hosts.size() < answers.size()) {
    absl::StrAppend(&message, "; mend this, or leave them out with --exclude ",
                    absl::StrJoin(hosts, "@"));
  }
  absl::StrAppend(&message, FanoutHint(answers));
  return some_silent ? absl::UnavailableError(message) : absl::FailedPreconditionError(message);
}

absl::StatusOr<std::string> MeetingAddress(const std::vector<HostAnswer>& answers) {
  // An agent on this host takes its address from the ssh session of the user.
  const bool starts_here = answers.front().is_local;
  std::string address = starts_here ? "" : answers.front().hello.address;
  bool all_local = true;  // Then a loopback address is reached by all.
  for (const HostAnswer& answer : answers) {
    if (starts_here && !answer.is_local && answer.ssh_from.empty() && address.empty()) {
      address = answer.hello.client_address;
    }
    all_local = all_local && (answer.is_local || comm::IsLoopback(answer.hello.address));
  }
  if (all_local) {
    return "127.0.0.1";
  }
  if (address.empty() || comm::IsLoopback(address)) {
    return absl::FailedPreconditionError(
        absl::StrFormat("host %s, which is node 0, is known only as \"%s\", where other hosts do "
                        "not reach it; give --master-addr ADDRESS",
                        answers.front().host, Printable(address)));
  }
  return address;
}

int CodeOfJob(const std::vector<HostEnd>& ends, bool signalled) {
  const HostEnd& node_0 = ends.front();
  const HostEnd* first = nullptr;  // The first host that failed by itself.
  for (const HostEnd& end : ends) {
    if ((end.lost || end.code != kExitOk) && !end.stopped &&
        (first == nullptr || end.order < first->order)) {
      first = &end;
    }
  }
  if (first == nullptr || (signalled && !node_0.lost)) {
    return node_0.code;
  }
  const bool explained = node_0.code != kExitOk && !node_0.lost && !node_0.stopped;
  if (explained && !(first->lost && node_0.code == kExitTerminated)) {
    return node_0.code;
  }
  return first->lost ? kExitTemporary : first->code;
}

std::optional<absl::Duration> RetryTime(const HostEnd& end, int ends) {
  constexpr Backoff kRetries{.first = kFirstRetry, .longest = absl::Minutes(10)};
  if (end.lost) {
    return kRetries.first;
  }
  switch (end.code) {
    case kExitOk:
    case kExitTerminated:
    case kExitInterrupted:
    case kExitUsage:
      return std::nullopt;
    case kExitStop:
      return kRetries.longest;
    default:
      return kRetries.After(ends);
  }
}

}  // namespace dtrain::launcher
