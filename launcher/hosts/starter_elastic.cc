// The part of a starter for jobs that go on without some hosts (--nnodes MIN:MAX): it starts
// without those that are silent, and takes lost ones back.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/text/text.h"
#include "launcher/hosts/starter.h"

namespace dtrain::launcher {
namespace {

bool StaysOut(const HostEnd& end) { return !end.lost && end.code == kExitUsage; }

}  // namespace

// The job goes on without a host, unless that has the coordinator.
void Starter::OnEndOfElastic(size_t node) {
  const HostEnd& end = ends_[node];
  if (node == 0) {
    EndOthersSoon();
    for (const HostLink& link : links_) {
      if (link.state() == State::kGreeting) {
        link.Kill();
      }
    }
    if (!others_met_) {
      HangUpAll();
    }
  } else if (received_ == 0 && !others_end_.has_value()) {
    Comeback& comeback = comebacks_[node];
    comeback.short_ends = end.lost || Passed(comeback.calm) ? 0 : comeback.short_ends;
    if (const std::optional<absl::Duration> time = RetryTime(end, ++comeback.short_ends)) {
      Say(absl::StrFormat("host %s is tried again in %s", links_[node].plan().host,
                          absl::FormatDuration(*time)));
      comeback.retry = Deadline::After(*time);
    } else if (StaysOut(end)) {  // TakeBack says that it stays out, if the job goes on.
      comeback.retry = Deadline::After(kFirstRetry);
    }
  }
}

// Tells the agent of a node behind the first one where the coordinator is.
void Starter::MeetNode(size_t node) {
  constexpr absl::Duration kCalmTime = absl::Minutes(1);
  comebacks_[node].calm = Deadline::After(kCalmTime);
  links_[node].Meet(links_.front().serving());
}

// Starts lost hosts again when they can be reached, and lets them in as the nodes that they were.
void Starter::TakeBack() {
  if (!is_elastic_ || !others_met_ || received_ > 0 || others_end_.has_value()) {
    return;
  }
  routes_.Connect().IgnoreError();  // Those behind are tried again, in another way.
  for (size_t node = 1; node < links_.size(); ++node) {
    if (Passed(comebacks_[node].retry)) {
      TryAgain(node);
    }
    if (links_[node].state() == State::kReady) {
      LetIn(node);
    }
  }
}

void Starter::TryAgain(size_t node) {
  HostLink& link = links_[node];
  comebacks_[node].retry.reset();
  if (StaysOut(ends_[node])) {
    Say(
        absl::StrFormat("host %s stays out: its launcher has ended with exit code %d; mend what it "
                        "says, and start the job again to have the host in it",
                        link.plan().host, ends_[node].code));
    return;
  }
  link = HostLink(HostPlan(link.plan()));
  const std::optional<int> way = routes_.WayTo(link.plan());
  if (!way.has_value() || !StartHost(link, *way).ok()) {
    comebacks_[node].retry = Deadline::After(kFirstRetry);
  }
}

// The agent of a host that was lost has answered.
void Starter::LetIn(size_t node) {
  HostLink& link = links_[node];
  const HelloMessage& first = links_.front().hello();
  if (link.hello().error.empty() && link.hello().version == first.version &&
      link.hello().digest == first.digest) {
    Say(absl::StrFormat("host %s is back", link.plan().host));
    MeetNode(node);
  } else {
    Say(absl::StrFormat("host %s is back with another dtrain or program, and stays out: %s",
                        link.plan().host, Printable(link.hello().error)));
    link.HangUp();
  }
}

// A job that can do without them starts without the hosts that do not answer, but for the first,
// which has the coordinator. They are taken in when they come.
void Starter::LeaveOutSilent(std::vector<HostAnswer>& answers) {
  std::vector<HostAnswer> heard;
  std::vector<std::string> silent;
  for (const HostAnswer& answer : answers) {
    if (answer.silence.empty()) {
      heard.push_back(answer);
    } else {
      silent.push_back(absl::StrFormat("%s (%s)", answer.host, Printable(WhySilent(answer))));
    }
  }
  if (silent.empty() || !answers.front().silence.empty() ||
      static_cast<int>(heard.size()) < options_.nodes_min) {
    return;
  }
  Say(absl::StrFormat("%d of %d hosts do not answer, and the job starts without them: %s%s",
                      silent.size(), answers.size(), absl::StrJoin(silent, ", "),
                      FanoutHint(answers)));
  answers = std::move(heard);
  for (size_t node = 1; node < links_.size(); ++node) {
    if (links_[node].state() == State::kEnded || links_[node].state() == State::kWaiting) {
      comebacks_[node].retry = Deadline::After(kFirstRetry);
    }
  }
}

}  // namespace dtrain::launcher
