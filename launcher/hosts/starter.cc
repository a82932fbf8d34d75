#include "launcher/hosts/starter.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/console/command_line.h"
#include "base/status.h"
#include "base/system/resource_limits.h"
#include "base/text/text.h"
#include "base/unique_fd.h"
#include "comm/net/socket.h"
#include "launcher/bind_node.h"
#include "launcher/ranks/rank_end.h"

namespace dtrain::launcher {
namespace {

constexpr int kConnectingMax = 64;  // From one host.
constexpr absl::Duration kHelloTime = absl::Minutes(1);
// A host that is to start others answers within this, which is longer than ssh takes to connect, or
// they are started in another way.
constexpr absl::Duration kRelayTime = absl::Seconds(20);
// After one host has failed the others end by themselves within seconds.
constexpr absl::Duration kOthersTime = absl::Seconds(10);
// For the hosts' answer to a second stop signal.
constexpr absl::Duration kGiveUpTime = absl::Seconds(10);
constexpr absl::Duration kHangUpTime = absl::Seconds(2);
constexpr absl::Duration kFirstNotice = absl::Seconds(4);
constexpr absl::Duration kNextNotice = absl::Seconds(30);
constexpr int kShowMs = 10'000;

// Keeps the numbers 0 to 2 for the standard streams, also where one was closed.
void FillStandardStreams() {
  int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  while (fd >= 0 && fd <= 2) {
    fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  }
  UniqueFd(fd).reset();
}

absl::StatusOr<int> StartAll(const LaunchOptions& options, const Environment& environment) {
  constexpr uint64_t kFilesOfHost = 4;
  DT_ASSIGN_OR_RETURN(std::vector<HostPlan> plans, PlanHosts(options, environment));
  if (options.hosts.dry_run) {
    std::fputs(DescribePlans(plans).c_str(), stdout);
    if (!options.network_profile.empty()) {
      const NodeBinding binding = BindNode(options, plans.front().job.environment, 1);
      std::fputs(DescribeNetwork(options.network_profile, binding.network).c_str(), stdout);
    }
    return kExitOk;
  }
  AllowOpenFiles(kFilesOfHost * plans.size());
  DT_ASSIGN_OR_RETURN(SignalSource signals, SignalSource::Create(options.signals));
  DT_ASSIGN_OR_RETURN(const comm::JobKey key, comm::JobKey::Generate());
  return Starter(options, std::move(plans), key, signals).Run();
}

}  // namespace

Starter::Starter(const LaunchOptions& options, std::vector<HostPlan> plans, const comm::JobKey& key,
                 SignalSource& signals)
    : options_(options),
      token_(reinterpret_cast<const char*>(key.secret_bytes().data()), key.secret_bytes().size()),
      signals_(signals),
      is_elastic_(options.nodes_min < options.nodes),
      routes_(plans, std::min(kRelayTime, options.join_timeout / 3)),
      next_notice_(Deadline::After(kFirstNotice)) {
  for (HostPlan& plan : plans) {
    links_.emplace_back(std::move(plan));
  }
  ends_.resize(links_.size(), HostEnd{.code = kExitTemporary});
  comebacks_.resize(links_.size());
}

absl::StatusOr<int> Starter::Run() {
  const Deadline answered = Deadline::After(std::min(kHelloTime, options_.join_timeout));
  absl::Status status;
  while (status.ok() && received_ == 0 && !AllHaveAnswered() && !answered.Expired()) {
    status = StartMore();
    Step();
    SayWhoIsMissing();
  }
  if (status.ok() && received_ > 0) {
    status =
        first_signal_ == SIGINT
            ? absl::CancelledError("SIGINT before all hosts had answered; nothing was started")
            : absl::AbortedError("stop signal before all hosts had answered; nothing was started");
  }
  if (status.ok()) {
    status = MeetFirst();
  }
  while (status.ok() && !NoneRuns() && !Passed(give_up_)) {
    Step();
    MeetOthers();
    TakeBack();
    StopLate();
  }
  EndAll();
  DT_RETURN_IF_ERROR(status);
  if (is_elastic_) {  // The coordinator on node 0 knows how the job ended.
    return ends_.front().lost ? kExitTemporary : ends_.front().code;
  }
  return CodeOfJob(ends_, received_ > 0);
}

// One turn: waits until something has happened, and deals with it.
void Starter::Step() {
  Wait();
  TakeSignals();
  routes_.Move(console_);
  for (HostLink& link : links_) {
    link.Move(console_);
  }
  TakeEnds();
  console_.out.Flush();
  console_.err.Flush();
}

absl::Status Starter::StartMore() {
  DT_RETURN_IF_ERROR(routes_.Connect());
  std::map<std::string, int> connecting;  // By the host whose ssh connects.
  for (const HostLink& link : links_) {
    connecting[link.from()] += link.state() == State::kGreeting ? 1 : 0;
  }
  for (HostLink& link : links_) {
    if (link.state() != State::kWaiting) {
      continue;
    }
    const std::optional<int> way = routes_.WayTo(link.plan());
    if (way.has_value() && connecting[routes_.SshFrom(link.plan(), *way)] < kConnectingMax) {
      DT_RETURN_IF_ERROR(StartHost(link, *way));
      ++connecting[link.from()];
    }
  }
  return absl::OkStatus();
}

absl::Status Starter::StartHost(HostLink& link, int way) {
  DT_ASSIGN_OR_RETURN(std::unique_ptr<AgentProcess> process, routes_.Start(link.plan(), way));
  link.Start(token_, std::move(process), routes_.SshFrom(link.plan(), way));
  return absl::OkStatus();
}

void Starter::Wait() {
  constexpr int kTurnMs = 200;
  std::vector<pollfd> entries = {{signals_.poll_fd(), POLLIN, 0},
                                 {console_.out.empty() ? -1 : console_.out.fd(), POLLOUT, 0},
                                 {console_.err.empty() ? -1 : console_.err.fd(), POLLOUT, 0}};
  const bool has_room = console_.HasRoom();
  routes_.AddTo(entries, has_room);
  for (const HostLink& link : links_) {
    link.AddTo(entries, has_room);
  }
  poll(entries.data(), entries.size(), kTurnMs);
}

void Starter::TakeSignals() {
  for (const int signal : signals_.Take()) {
    if (signal == SIGCHLD) {
      continue;
    }
    ++received_;
    first_signal_ = first_signal_ == 0 ? signal : first_signal_;
    if (received_ > 1) {
      give_up_ = give_up_.value_or(Deadline::After(kGiveUpTime));
    }
    for (HostLink& link : links_) {
      if (link.state() == State::kMet) {
        link.SendSignal(signal);
      }
    }
  }
}

void Starter::TakeEnds() {
  for (size_t node = 0; node < links_.size(); ++node) {
    if (links_[node].TakeEnd(console_)) {
      ends_[node].order = ended_++;
      ends_[node].stopped = !begun_ || hung_up_ || stopped_late_;
      OnEnd(node);
    }
  }
}

void Starter::OnEnd(size_t node) {
  const HostLink& link = links_[node];
  HostEnd& end = ends_[node];
  end.code = link.exit_code().value_or(kExitTemporary);
  end.lost = !link.exit_code().has_value();
  if (end.stopped) {
    return;
  }
  if (end.lost) {
    Say(absl::StrFormat("host %s is lost: %s", link.plan().host, Printable(link.Why())));
  }
  if (is_elastic_) {
    OnEndOfElastic(node);
    return;
  }
  // After a stop signal a host may take its time to save.
  if (received_ == 0 && (end.lost || end.code != kExitOk)) {
    EndOthersSoon();
  }
  if (!others_met_) {  // The nodes cannot meet any more.
    HangUpAll();
  }
}

// After a failure.
void Starter::EndOthersSoon() { others_end_ = others_end_.value_or(Deadline::After(kOthersTime)); }

void Starter::HangUpAll() {
  hung_up_ = true;
  for (HostLink& link : links_) {
    link.HangUp();
  }
}

void Starter::SayWhoIsMissing() {
  if (!next_notice_.Expired()) {
    return;
  }
  next_notice_ = Deadline::After(kNextNotice);
  std::vector<std::string> missing;
  int answered = 0;
  for (const HostLink& link : links_) {
    answered += link.hello().version.empty() ? 0 : 1;
    if (link.state() == State::kGreeting || link.state() == State::kWaiting) {
      missing.push_back(link.plan().host);
    }
  }
  Say(absl::StrFormat("%d of %d hosts have answered; still to come: %s", answered, links_.size(),
                      absl::StrJoin(missing, ", ")));
}

// Whether each host has answered, or never will.
bool Starter::AllHaveAnswered() const {
  return Count(State::kWaiting) == 0 && Count(State::kGreeting) == 0;
}

std::vector<HostAnswer> Starter::Answers() const {
  std::vector<HostAnswer> answers;
  for (const HostLink& link : links_) {
    const HelloMessage& hello = link.hello();
    const bool can_start = hello.version == OwnVersion() && hello.error.empty();
    const bool is_silent = hello.version.empty() || (can_start && link.state() == State::kEnded);
    answers.push_back(
        {link.plan().host, link.plan().is_local, is_silent ? link.Why() : "", hello, link.from()});
  }
  return answers;
}

// When all hosts can start: node 0 begins, and opens the coordinator.
absl::Status Starter::MeetFirst() {
  std::vector<HostAnswer> answers = Answers();
  if (is_elastic_) {
    LeaveOutSilent(answers);
  }
  DT_RETURN_IF_ERROR(CheckAnswers(answers, OwnVersion()));
  std::string address = options_.hosts.address;
  if (address.empty()) {
    DT_ASSIGN_OR_RETURN(address, MeetingAddress(answers));
  }
  begun_ = true;
  others_met_ = links_.size() == 1;  // Then there is nobody to meet.
  links_.front().Meet(others_met_ ? "" : comm::Endpoint{address, options_.hosts.port}.ToString());
  return absl::OkStatus();
}

void Starter::MeetOthers() {
  if (others_met_ || links_.front().serving().empty()) {
    return;
  }
  others_met_ = true;
  for (size_t node = 1; node < links_.size(); ++node) {
    MeetNode(node);
  }
}

// Stops hosts that go on although one has failed: they could wait for it for minutes.
void Starter::StopLate() {
  if (stopped_late_ || !Passed(others_end_)) {
    return;
  }
  stopped_late_ = true;
  for (HostLink& link : links_) {
    if (link.state() == State::kMet) {
      Say(absl::StrCat("stopping host ", link.plan().host));
      link.SendSignal(SIGTERM);
    }
  }
}

// Leaves no process of this host behind: agents without ranks end when they are hung up on, and
// hosts that start others behind those.
void Starter::EndAll() {
  const auto await = [this](const auto& have_ended) {
    const Deadline deadline = Deadline::After(kHangUpTime);
    while (!have_ended() && !deadline.Expired()) {
      Step();
    }
  };
  const auto hosts_have = [this] { return NoneRuns(); };
  const auto routes_have = [this] { return routes_.AllEnded(); };
  HangUpAll();
  await(hosts_have);
  for (const HostLink& link : links_) {
    link.Kill();
  }
  await(hosts_have);
  routes_.HangUp();
  await(routes_have);
  routes_.Kill();
  await(routes_have);
  console_.out.Finish(kShowMs);
  console_.err.Finish(kShowMs);
}

int Starter::Count(State state) const {
  return static_cast<int>(
      std::count_if(links_.begin(), links_.end(),
                    [state](const HostLink& link) { return link.state() == state; }));
}

int StartOnHosts(const LaunchOptions& options, const Environment& environment) {
  FillStandardStreams();
  const absl::StatusOr<int> code = StartAll(options, environment);
  return code.ok() ? *code : EndOf("dtrain launch", code.status());
}

}  // namespace dtrain::launcher
