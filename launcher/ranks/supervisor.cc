#include "launcher/ranks/supervisor.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/status.h"
#include "launcher/ranks/process_sample.h"
#include "launcher/ranks/reuse_plan.h"

namespace dtrain::launcher {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(200);

bool Passed(const std::optional<Deadline>& deadline) {
  return deadline.has_value() && deadline->Expired();
}

std::string Plural(int count, const char* noun) {
  return absl::StrFormat("%d %s%s", count, noun, count == 1 ? "" : "s");
}

}  // namespace

Supervisor::Supervisor(const Parts& parts, const SupervisorLimits& limits, const Attempt& attempt)
    : parts_(parts),
      limits_(limits),
      attempt_(attempt),
      processes_(parts.guard),
      watch_({.node = attempt.shape.node_rank,
              .world_size = attempt.shape.world_size(),
              .attempt = attempt.shape.attempt,
              .host = attempt.host},
             parts.peers, parts.reporter),
      reuse_(attempt, limits_, parts.socket, parts.reporter, processes_, parts.survivors),
      report_(attempt, parts.reporter),
      stop_progress_(attempt.slots) {}

AttemptResult Supervisor::Run() {
  if (absl::Status started = StartRanks(); !started.ok()) {
    CannotStart(std::move(started));
  }
  while (!Finished()) {
    Wait();
    TakeSignals();
    TakeMessages();
    TakeOrders();
    TakeEnds();
    AnswerSaved();
    ReplaceSilent();
    WatchRanks();
    KeepReserve();
    Decide();
  }
  if (const absl::Status removed = processes_.RemoveAll(limits_.removal); !removed.ok()) {
    parts_.reporter.Say(std::string(removed.message()));
  }
  report_.Tell(result_, announced_, watch_.LocalViews());
  return std::move(result_);
}

// The ranks of the other nodes would wait for those that do not come.
void Supervisor::CannotStart(absl::Status why) {
  const JobShape& shape = attempt_.shape;
  result_.error = std::move(why);
  parts_.peers.Publish(
      CannotStartOrder(shape.node_rank, shape.first_rank(), attempt_.host, result_.error));
  StopRanks(std::string(result_.error.message()));
}

absl::Status Supervisor::StartRanks() {
  reuse_.Begin();
  for (const RankSlot& slot : attempt_.slots) {
    DT_RETURN_IF_ERROR(StartRank(slot));
  }
  reuse_.RemoveRest();
  return absl::OkStatus();
}

absl::Status Supervisor::StartRank(const RankSlot& slot) {
  const Environment environment = attempt_.EnvironmentOf(slot);
  ranks_.Add(slot.rank);
  report_.RankStarts(slot.rank);
  if (reuse_.Start(slot, environment)) {
    return absl::OkStatus();
  }
  SpawnRequest request = attempt_.RequestWith(environment);
  request.cpus = slot.cpus;
  request.memory_node = slot.memory_node;
  request.out_path = attempt_.LogPath(slot.rank, "out");
  request.err_path = attempt_.LogPath(slot.rank, "err");
  DT_RETURN_IF_ERROR(
      Annotate(processes_.Start(request, slot.rank), absl::StrCat("rank ", slot.rank)));
  parts_.reporter.Event("spawn", {{"rank", slot.rank}, {"cpus", FormatCpus(slot.cpus)}});
  return absl::OkStatus();
}

// Those that have passed are not waited for.
Deadline Supervisor::Dues::EarliestAfter(Deadline next) const {
  for (const auto* due : {&settle, &stacks, &stay, &kill, &grace, &barrier, &removal, &verdicts}) {
    if (due->has_value() && !(*due)->Expired()) {
      next = Earlier(next, **due);
    }
  }
  return next;
}

void Supervisor::Wait() {
  Deadline next =
      Deadline::After(IsWatching() ? watch_.UntilLook(Clock::Real().MonotonicNanos()) : kTick);
  next = due_.EarliestAfter(next);
  std::array<pollfd, 3> entries = {{{parts_.signals.poll_fd(), POLLIN, 0},
                                    {parts_.socket.poll_fd(), POLLIN, 0},
                                    {parts_.peers.poll_fd(), POLLIN, 0}}};
  poll(entries.data(), entries.size(), next.PollTimeoutMs());
}

void Supervisor::TakeSignals() {
  for (const int signal : parts_.signals.Take()) {
    if (signal != SIGCHLD) {
      OnStopSignal(signal, /*from_peer=*/false, /*job_goes_on=*/false);
    }
  }
}

void Supervisor::OnStopSignal(int signal, bool from_peer, bool job_goes_on) {
  const StopEffect effect = NoteStopSignal(signal, from_peer, job_goes_on, result_.stop);
  if (effect == StopEffect::kForce && phase_ != Phase::kKilled) {
    result_.stop.forced = true;
    parts_.reporter.Say(absl::StrCat("second ", SignalName(signal), ": killing ",
                                     Plural(processes_.alive(), "rank"), " now"));
    KillRanks();
  }
  if (effect != StopEffect::kStop) {
    return;
  }
  due_.grace = Deadline::After(limits_.stop_grace);
  stop_progress_.Begin(Clock::Real().MonotonicNanos(), limits_.stop_grace);
  const int forwarded = ForwardedSignal(signal);
  parts_.reporter.Say(absl::StrFormat(
      "%s received%s: %s got %s to save and stop, which may take up to %s; a second signal stops "
      "at once",
      SignalName(signal), from_peer ? " on another node" : "", Plural(processes_.alive(), "rank"),
      SignalName(forwarded), absl::FormatDuration(limits_.stop_grace)));
  parts_.reporter.Event("signal", {{"signal", SignalName(signal)}});
  if (phase_ == Phase::kRunning) {
    processes_.Signal(forwarded);
  }
  if (!from_peer) {
    parts_.peers.Publish({.kind = Order::Kind::kStop, .signal = signal});
  }
}

// When a rank has failed, or this agent ends ranks, other lines say so.
void Supervisor::SayStopProgress(const std::optional<std::string>& line) {
  if (line.has_value() && phase_ == Phase::kRunning &&
      RootCause(result_.ends, result_.stop) == nullptr) {
    parts_.reporter.Say(*line);
  }
}

// `all` that have arrived; otherwise at least some of them.
void Supervisor::TakeMessages(bool all) {
  const int64_t now = Clock::Real().MonotonicNanos();
  for (const AgentMessage& message : all ? parts_.socket.ReceiveAll() : parts_.socket.Receive()) {
    if (message.kind == AgentMessage::Kind::kCanStay) {  // The socket remembers it.
      reuse_.OnCanStay(message);
      continue;
    }
    if (!ranks_.Has(message.rank)) {
      continue;
    }
    if (message.kind == AgentMessage::Kind::kStays) {
      if (auto end = reuse_.OnStays(message, /*may_keep=*/phase_ != Phase::kKilled)) {
        NoteEnd(*std::move(end), /*is_kept=*/true);
      }
      continue;
    }
    if (message.kind == AgentMessage::Kind::kHello) {
      reuse_.OnHello(message.rank);
    }
    watch_.Take(message, now);
    SayStopProgress(stop_progress_.Take(message, now));
    ranks_.Take(message, now);
  }
  for (const int asker : parts_.socket.TakeQuestions()) {
    AgentSocket::Answer(asker, Describe());
  }
}

std::string Supervisor::Describe() const {
  const int64_t now = Clock::Real().MonotonicNanos();
  const char* const phase = phase_ != Phase::kRunning  ? "ending"
                            : result_.stop.signal != 0 ? "stopping"
                                                       : "running";
  return DumpJson({{"attempt", attempt_.shape.attempt},
                   {"world_size", attempt_.shape.world_size()},
                   {"phase", phase},
                   {"ranks", ranks_.Rows(processes_.AliveRanks(), now)},
                   {"others", RowsOfOthers(watch_.OtherViews(now))}});
}

void Supervisor::TakeOrders() {
  std::vector<Order> orders = parts_.peers.Take();
  const absl::Status health = parts_.peers.health();
  if (!health.ok()) {  // Orders that arrived ahead of the loss, but behind the look above.
    std::vector<Order> last = parts_.peers.Take();
    std::move(last.begin(), last.end(), std::back_inserter(orders));
  }
  for (const Order& order : orders) {
    if (order.kind == Order::Kind::kStop) {
      OnStopSignal(order.signal, /*from_peer=*/true, order.job_goes_on);
    } else if (order.kind == Order::Kind::kEnded) {
      ++told_.nodes_ended;
      result_.durable_step = std::max(result_.durable_step, order.durable_step);
    } else if (order.kind == Order::Kind::kAsk) {
      parts_.peers.Answer(order, Describe());
    } else if (order.kind == Order::Kind::kLook) {
      watch_.LookAtOnce(Clock::Real().MonotonicNanos());
    } else {
      RankEnd end = order.end;
      end.order = ends_seen_++;
      if (ranks_.Has(end.rank)) {  // Node 0 has found that it hangs, and told all.
        end.log = attempt_.LogPath(end.rank, "err");
        told_.failed_pid = end.pid;
      }
      result_.ends.push_back(end);
      if (!due_.settle.has_value()) {
        due_.settle = Deadline::After(limits_.settle);
      }
      if (!end.hang.empty()) {
        AskStacks(end);
      }
    }
  }
  // A lost peer changes nothing for ranks that are being killed: back in kTerminating, their death
  // by our SIGKILL would count as their own failure. Nor does it when the ranks of all nodes have
  // ended: the news of the last end and that of a store that closes behind it may come together.
  const bool is_over = processes_.alive() == 0 && told_.nodes_ended >= parts_.peers.nodes() - 1;
  if (!health.ok() && result_.error.ok() && phase_ != Phase::kKilled && !is_over) {
    result_.error = health;
    StopRanks(std::string(health.message()));
  }
}

bool Supervisor::StoppedByUs(const RankEnd& end) const {
  switch (phase_) {
    case Phase::kRunning:
      return false;
    // In this phase the agent has killed no rank but one that hangs, so another one that was killed
    // failed by itself.
    case Phase::kTerminating:
      if (std::find(killed_.begin(), killed_.end(), end.rank) != killed_.end()) {
        return true;
      }
      return end.signal == 0 || end.signal == SIGTERM;
    case Phase::kKilled:
      return true;
  }
  return true;
}

// A rank says why it ends before it ends. So what it said has arrived by the time its end is seen,
// but may have come behind the last look for messages.
void Supervisor::TakeEnds() {
  std::vector<RankEnd> ends = processes_.TakeEnds();
  if (!ends.empty()) {
    TakeMessages(/*all=*/true);
  }
  for (RankEnd& end : ends) {
    NoteEnd(std::move(end), /*is_kept=*/false);
  }
}

void Supervisor::NoteEnd(RankEnd end, bool is_kept) {
  end.node = attempt_.shape.node_rank;
  end.host = attempt_.host;
  end.stopped = StoppedByUs(end);
  end.order = ends_seen_++;
  end.log = attempt_.LogPath(end.rank, "err");
  ranks_.FillIn(end);
  parts_.reporter.Event("end", {{"rank", end.rank},
                                {"pid", end.pid},
                                {"exit_code", CodeOf(end)},
                                {"signal", end.signal},
                                {"stopped", end.stopped},
                                {"kept", is_kept},
                                {"step", end.step}});
  if (FailedByItself(end) && !due_.settle.has_value()) {
    due_.settle = Deadline::After(limits_.settle);
  }
  if (CodeOf(end) == 0 && !due_.barrier.has_value()) {
    due_.barrier = Deadline::After(limits_.exit_barrier);
  }
  reuse_.OnEnd(end.rank);
  watch_.Ended(end.rank);
  const std::optional<std::string> line =
      stop_progress_.Ended(end.rank, Clock::Real().MonotonicNanos());
  result_.ends.push_back(std::move(end));
  SayStopProgress(line);
}

void Supervisor::AnswerSaved() {
  using News = RankReuse::StopNews;
  const bool is_stopping = result_.stop.signal != 0 || phase_ != Phase::kRunning;
  const bool goes_on = result_.stop.job_goes_on && phase_ == Phase::kRunning;
  for (RankEnd& end : reuse_.AnswerSaved(goes_on       ? News::kJobGoesOn
                                         : is_stopping ? News::kJobEnds
                                                       : News::kNone)) {
    NoteEnd(std::move(end), /*is_kept=*/true);
  }
}

void Supervisor::ReplaceSilent() {
  while (phase_ == Phase::kRunning) {
    const std::optional<RankSlot> slot = reuse_.RemoveSilent();
    if (!slot.has_value()) {
      return;
    }
    if (absl::Status started = StartRank(*slot); !started.ok()) {
      CannotStart(std::move(started));
    }
  }
}

// Not before the attempt is under way, because the process would hold its ranks up as they start.
void Supervisor::KeepReserve() {
  if (IsWatching() && ranks_.AllTrain() && reuse_.KeepReserve()) {
    parts_.peers.TellReserve();
  }
}

// While ranks stop, or one has failed, it is clear why others wait.
bool Supervisor::IsWatching() const {
  return phase_ == Phase::kRunning && result_.stop.signal == 0 && !due_.settle.has_value();
}

void Supervisor::WatchRanks() {
  if (!IsWatching()) {
    return;
  }
  std::optional<RankEnd> hang = watch_.Look(Clock::Real().MonotonicNanos());
  if (hang.has_value()) {
    OnHang(*std::move(hang));
  }
}

void Supervisor::OnHang(RankEnd end) {
  end.order = ends_seen_++;
  due_.settle = Deadline::After(limits_.settle);
  announced_ = DescribeFailure(end);
  parts_.reporter.Say(announced_);  // The stacks that are asked for now take their time.
  if (ranks_.Has(end.rank)) {
    end.log = attempt_.LogPath(end.rank, "err");
  }
  PublishEnd(end);
  AskStacks(end);
  result_.ends.push_back(std::move(end));
}

// Where another attempt follows, it is held up only for a rank that hangs here and can write: one
// that is stopped cannot, and those that stay have written before they hear that they are to. Where
// all hang in collectives, the first to give up takes the others out of theirs, so all wait.
void Supervisor::AskStacks(const RankEnd& hang) {
  const pid_t pid = processes_.PidOf(hang.rank);
  const bool is_of_all = hang.hang == HangKindName(HangKind::kAllStuck) ||
                         hang.hang == HangKindName(HangKind::kMismatch);
  if (parts_.survivors == nullptr || is_of_all || (pid > 0 && !SampleProcess(pid).is_stopped)) {
    due_.stacks = Deadline::After(limits_.stacks);
  }
  report_.AskStacks(watch_.LocalViews());
}

void Supervisor::Decide() {
  if (phase_ == Phase::kTerminating && Passed(due_.kill)) {
    KillRanks();
  } else if (phase_ == Phase::kTerminating && Passed(due_.stay) && !due_.kill.has_value()) {
    processes_.Signal(SIGTERM);  // They have had their time to give the attempt up by themselves.
    due_.kill = Deadline::After(limits_.terminate);
  }
  if (phase_ != Phase::kRunning || (due_.stacks.has_value() && !Passed(due_.stacks))) {
    return;
  }
  const RankEnd* const cause = RootCause(result_.ends, result_.stop);
  if (cause != nullptr &&
      (!MayBeVictim(*cause) || Passed(due_.settle) || processes_.alive() == 0)) {
    StopRanks(DescribeFailure(*cause));
  } else if (result_.stop.signal != 0 && Passed(due_.grace) && processes_.alive() > 0) {
    result_.stop.forced = true;
    StopRanks(absl::StrCat("the grace period of ", absl::FormatDuration(limits_.stop_grace),
                           " has passed"));
  } else if (Passed(due_.barrier)) {
    result_.error = ExitBarrierError(result_.ends, processes_.AliveRanks(), limits_.exit_barrier);
    StopRanks(std::string(result_.error.message()));
  }
}

void Supervisor::StopRanks(const std::string& why) {
  TakeEnds();  // Ranks that have ended by now did so by themselves.
  const std::string others =
      processes_.alive() > 0 ? absl::StrCat("stopping ", Plural(processes_.alive(), "rank")) : "";
  if (why != announced_) {
    parts_.reporter.Say(absl::StrCat(why, others.empty() ? "" : "; ", others));
  } else if (!others.empty()) {
    parts_.reporter.Say(others);
  }
  announced_ = why;
  parts_.reporter.Event("stop", {{"why", why}});
  PublishFailure();
  phase_ = Phase::kTerminating;
  parts_.socket.TellFailure(why);
  if (AwaitStays()) {
    due_.stay = Deadline::After(limits_.stay);
    due_.verdicts = Deadline::After(limits_.stay + limits_.peers_end);
    return;
  }
  processes_.Signal(SIGTERM);
  due_.kill = Deadline::After(limits_.terminate);
  due_.verdicts = Deadline::After(limits_.peers_end);
}

// Gives whether ranks are left that may stay for the next attempt.
bool Supervisor::AwaitStays() {
  const RankEnd* const cause = RootCause(result_.ends, result_.stop);
  if (parts_.survivors == nullptr || result_.stop.signal != 0 || !MayReuse(cause, result_.error)) {
    return false;
  }
  if (cause != nullptr && !cause->hang.empty() && processes_.PidOf(cause->rank) >= 0) {
    killed_.push_back(cause->rank);
    processes_.SignalRank(cause->rank, SIGKILL);
  }
  return reuse_.AwaitStays();
}

void Supervisor::KillRanks() {
  processes_.Signal(SIGKILL);
  phase_ = Phase::kKilled;
  due_.removal = Deadline::After(limits_.removal);
  due_.verdicts = due_.verdicts.value_or(Deadline::After(limits_.peers_end));
}

void Supervisor::PublishFailure() {
  const RankEnd* const cause = RootCause(result_.ends, result_.stop);
  if (cause != nullptr && cause->node == attempt_.shape.node_rank &&
      told_.failed_pid != cause->pid) {
    PublishEnd(*cause);
  }
}

void Supervisor::PublishEnd(const RankEnd& end) {
  told_.failed_pid = end.pid;
  parts_.peers.Publish({.kind = Order::Kind::kFail, .end = end});
}

bool Supervisor::Finished() {
  if (processes_.alive() > 0) {
    return phase_ == Phase::kKilled && Passed(due_.removal);
  }
  if (!told_.own_end) {
    told_.own_end = true;
    PublishFailure();  // Published again when a harder end came after the first report.
    Order ended;
    ended.durable_step = parts_.reporter.ReadDurableStep();
    parts_.peers.Publish(std::move(ended));
  }
  // TakeOrders has yet to note a loss that became known just now, or the attempt would count as one
  // that has ended well.
  const bool knows_failure = phase_ != Phase::kRunning || !result_.error.ok();
  return told_.nodes_ended >= parts_.peers.nodes() - 1 ||
         (knows_failure && !parts_.peers.health().ok()) || Passed(due_.verdicts);
}

}  // namespace dtrain::launcher
