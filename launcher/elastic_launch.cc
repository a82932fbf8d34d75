#include "launcher/elastic_launch.h"

#include <algorithm>
#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/net/store_server.h"
#include "launcher/attempt_meeting.h"
#include "launcher/config_check.h"
#include "launcher/jobs/control_socket.h"
#include "launcher/jobs/elastic_calls.h"
#include "launcher/machine.h"
#include "launcher/nodes/coordinator_process.h"
#include "launcher/nodes/elastic_peers.h"
#include "launcher/nodes/lobby.h"
#include "launcher/nodes/node_zero.h"
#include "launcher/restart.h"

namespace dtrain::launcher {
namespace {

constexpr absl::Duration kSlice = absl::Milliseconds(100);
constexpr absl::Duration kMeetTime = absl::Minutes(1);

class ElasticNodeLaunch {
 public:
  explicit ElasticNodeLaunch(NodeSession& session) : session_(session) {}
  ~ElasticNodeLaunch() { session_.StopServingNodes(); }
  int Run();

 private:
  // The exit code with which this node's part ends; nothing while it goes on.
  using End = std::optional<int>;

  absl::Status Open();
  absl::Status StartCoordinator();
  absl::Status JoinLobby(const LobbyMemory& memory);
  End Rejoin(const std::string& why, const LobbyMemory& memory);
  End OnSignal(int signal);
  End OnOrder(const LobbyOrder& order);
  void RunAttempt(const LobbyOrder& order);
  absl::StatusOr<AttemptResult> TryAttempt(const LobbyOrder& order);
  absl::StatusOr<Meeting> Meet(const LobbyOrder& order, int ranks);
  absl::StatusOr<Meeting> Serve(const LobbyOrder& order, int ranks);
  NodeReport ReportOf(int attempt, const absl::StatusOr<AttemptResult>& result) const;
  void SetLobby(std::shared_ptr<LobbyAgent> lobby);
  bool is_first() const { return session_.options().node_rank == 0; }

  NodeSession& session_;
  comm::Endpoint endpoint_;
  std::unique_ptr<CoordinatorProcess> coordinator_;   // Node 0 only.
  std::unique_ptr<comm::StoreServer> attempt_store_;  // Node 0 only: for the ranks of an attempt.
  std::shared_ptr<LobbyAgent> lobby_;
  std::optional<ElasticCalls> calls_;       // Set by Open.
  std::unique_ptr<ControlServer> control_;  // Asks calls_.
  int met_signal_ = 0;  // A stop signal that came before the attempt's ranks were started.
  // This node itself had no place for the attempt's ranks.
  bool cannot_start_ = false;
  bool is_spare_ = false;     // By the last order; it has no ranks and waits for a place.
  int64_t first_term_ = 0;    // The term of the first coordinator that this node followed.
  bool has_readied_ = false;  // Node 0 only: the run directory, for an attempt of this job.
};

absl::Status ElasticNodeLaunch::StartCoordinator() {
  const LaunchOptions& options = session_.options();
  CoordinatorOptions coordinating{.endpoint = endpoint_, .key = session_.key()};
  coordinating.started_at = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  coordinating.job = {.nodes_min = options.nodes_min,
                      .nodes_max = options.nodes,
                      .restarts_max = options.restarts_max,
                      .first_attempt = FirstAttempt(options),
                      .join_timeout = options.join_timeout,
                      .last_call = options.last_call,
                      .stop_grace = options.stop_grace,
                      .exit_barrier = options.exit_barrier};
  DT_ASSIGN_OR_RETURN(
      coordinating.job.batch,
      ElasticBatch(options.arguments, {options.nodes_min, options.nodes, session_.local_ranks()},
                   session_.environment()));
  DT_ASSIGN_OR_RETURN(coordinator_,
                      CoordinatorProcess::Start(
                          coordinating, [this](const std::string& text) { session_.Say(text); }));
  endpoint_ = coordinator_->endpoint();
  session_.Serving(endpoint_);
  return absl::OkStatus();
}

absl::Status ElasticNodeLaunch::JoinLobby(const LobbyMemory& memory) {
  const LaunchOptions& options = session_.options();
  LobbyJoin join{endpoint_,
                 session_.key(),
                 {options.node_rank, HostName(), session_.local_ranks(), options.host_alias},
                 options.join_timeout};
  join.memory = memory;
  DT_ASSIGN_OR_RETURN(std::shared_ptr<LobbyAgent> joined,
                      LobbyAgent::Join(join, [this] { return session_.TakeStopSignal(); }));
  SetLobby(std::move(joined));
  return absl::OkStatus();
}

void ElasticNodeLaunch::SetLobby(std::shared_ptr<LobbyAgent> lobby) {
  calls_->SetLobby(lobby);
  lobby_ = std::move(lobby);
}

absl::Status ElasticNodeLaunch::Open() {
  DT_ASSIGN_OR_RETURN(endpoint_, comm::ParseEndpoint(session_.options().rendezvous));
  if (is_first()) {
    DT_RETURN_IF_ERROR(StartCoordinator());
  } else {  // It would end an attempt of all nodes, only to be set aside.
    DT_RETURN_IF_ERROR(session_.CheckRoom());
  }
  calls_.emplace(endpoint_.host, session_.key());
  DT_RETURN_IF_ERROR(JoinLobby({}));
  first_term_ = lobby_->memory().term;
  DT_ASSIGN_OR_RETURN(control_,
                      ControlServer::Start(session_.AgentPath(kControlSocket),
                                           [this](const auto& call) { calls_->Drain(call); }));
  session_.ServeNodes([this] { return calls_->Nodes(); });
  session_.Register(session_.run_id());
  return absl::OkStatus();
}

int ElasticNodeLaunch::Run() {
  const int64_t started = Clock::Real().MonotonicNanos();
  End code;
  if (const absl::Status opened = Open(); !opened.ok()) {
    session_.Say(std::string(opened.message()));
    return ExitCodeFor(opened);
  }
  while (!code.has_value()) {
    if (const int signal = session_.TakeStopSignal(); signal != 0) {
      code = OnSignal(signal);
      continue;
    }
    const absl::StatusOr<std::optional<LobbyOrder>> order = lobby_->Next(kSlice);
    if (!order.ok()) {
      code = Rejoin(std::string(order.status().message()), lobby_->memory());
    } else if (order->has_value()) {
      code = OnOrder(**order);
    } else if (is_spare_ && session_.LacksReserve() && lobby_->MayReserve()) {
      session_.StartReserve();
    }
  }
  // The others go first: the coordinator waits for them in its destructor.
  session_.StopServingNodes();
  control_.reset();
  SetLobby(nullptr);
  coordinator_.reset();
  return session_.Finish(*code,
                         static_cast<double>(Clock::Real().MonotonicNanos() - started) * 1e-9);
}

// This node has no ranks. A signal for it alone lets it go; another stops the job.
ElasticNodeLaunch::End ElasticNodeLaunch::OnSignal(int signal) {
  const int code = signal == SIGINT ? kExitInterrupted : kExitTerminated;
  const bool stops_job = StopsJob(signal, session_.options().node_rank);
  const absl::Status posted =
      lobby_->Post(stops_job ? LobbyMessage{.kind = LobbyMessage::Kind::kStop, .signal = signal}
                             : LobbyMessage{.kind = LobbyMessage::Kind::kLeave});
  session_.Say(absl::StrCat(SignalName(signal), " received: ",
                            stops_job ? "the job is stopped" : "this node leaves the job"));
  return stops_job && posted.ok() ? std::nullopt : End(code);
}

// The coordinator is lost, or has given this node up, and no rank runs here. The node comes back
// once there is a coordinator at the same address; `memory` tells that one of the last attempt.
ElasticNodeLaunch::End ElasticNodeLaunch::Rejoin(const std::string& why,
                                                 const LobbyMemory& memory) {
  session_.Say(absl::StrFormat(
      "%s; no rank runs on this node; it waits up to %s for `dtrain launch` of node 0 at %s, and "
      "then goes on from the newest durable step",
      why, absl::FormatDuration(session_.options().join_timeout), endpoint_.ToString()));
  SetLobby(nullptr);
  const absl::Status joined = JoinLobby(memory);
  if (joined.ok()) {
    return std::nullopt;
  }
  session_.Say(std::string(joined.message()));
  return ExitCodeFor(joined);
}

ElasticNodeLaunch::End ElasticNodeLaunch::OnOrder(const LobbyOrder& order) {
  is_spare_ = order.kind == LobbyOrder::Kind::kPark;
  if (is_spare_) {
    session_.DropKept();
  } else if (order.kind != LobbyOrder::Kind::kStart) {
    session_.DropSurvivors();
  }
  switch (order.kind) {
    case LobbyOrder::Kind::kStart:
      RunAttempt(order);
      return std::nullopt;
    case LobbyOrder::Kind::kPark:
      session_.Say(order.text);
      return std::nullopt;
    case LobbyOrder::Kind::kDismiss:
      if (order.code == kExitTemporary) {
        LobbyMemory memory = lobby_->memory();
        memory.attempt.reset();
        return Rejoin(absl::StrCat("the coordinator has given this node up",
                                   order.text.empty() ? "" : ": ", order.text),
                      memory);
      }
      session_.Say(order.text);
      return order.code;
    case LobbyOrder::Kind::kEnd:
      if (!order.text.empty() && is_first()) {
        session_.Say(order.text);
      }
      return order.code;
    case LobbyOrder::Kind::kGiveUp:
      session_.Say(order.text);
      return order.code;
    case LobbyOrder::Kind::kStop:
    case LobbyOrder::Kind::kAnswer:
      return std::nullopt;  // Next gives none of these.
  }
  return std::nullopt;
}

void ElasticNodeLaunch::RunAttempt(const LobbyOrder& order) {
  if (!order.text.empty() && is_first()) {
    session_.Say(order.text);
    if (session_.reporter() != nullptr) {
      session_.reporter()->Event("restart", {{"attempt", order.attempt}, {"reason", order.text}});
    }
  }
  met_signal_ = 0;
  cannot_start_ = false;
  const absl::StatusOr<AttemptResult> result = TryAttempt(order);
  attempt_store_.reset();
  if (!result.ok()) {
    session_.Say(std::string(result.status().message()));
  }
  const absl::Status posted = lobby_->Post(
      {.kind = LobbyMessage::Kind::kReport, .report = ReportOf(order.attempt, result)});
  posted.IgnoreError();  // A lost coordinator shows at the next order too.
}

NodeReport ElasticNodeLaunch::ReportOf(int attempt,
                                       const absl::StatusOr<AttemptResult>& result) const {
  NodeReport report{.attempt = attempt};
  if (!result.ok()) {
    report.code = ExitCodeFor(result.status());
    report.stop_signal = met_signal_;
    report.stopped_here = met_signal_ != 0;
    report.cannot_start = cannot_start_;
    report.why = std::string(result.status().message());
    return report;
  }
  report.code = ExitCodeOf(*result);
  if (const RankEnd* const cause = CauseToReport(result->ends, result->stop)) {
    report.cause = *cause;
  }
  report.stop_signal = result->stop.signal;
  report.stopped_here = result->stop.here;
  report.durable_step = is_first() ? session_.reporter()->ReadDurableStep() : -1;
  return report;
}

absl::StatusOr<AttemptResult> ElasticNodeLaunch::TryAttempt(const LobbyOrder& order) {
  JobShape shape;
  shape.attempt = order.attempt;
  int ranks = 0;
  for (size_t node = 0; node < order.nodes.size(); ++node) {
    shape.ranks_of_node.push_back(order.nodes[node].ranks);
    ranks += order.nodes[node].ranks;
    shape.node_rank =
        order.names[node] == lobby_->name() ? static_cast<int>(node) : shape.node_rank;
  }
  DT_ASSIGN_OR_RETURN(const Meeting meeting, Meet(order, ranks));
  const absl::Status opened = session_.OpenRunDirectory(meeting.run_id);
  cannot_start_ = !opened.ok();
  DT_RETURN_IF_ERROR(opened);
  const LaunchOptions& options = session_.options();
  shape.begins_job = meeting.begins_job;
  shape.run_id = meeting.run_id;
  shape.store = meeting.store.ToString();
  shape.host_address =
      options.local_address.empty() ? lobby_->local_address() : options.local_address;
  // By the node's own number: its place in the world changes.
  shape.node_id = absl::StrCat(meeting.run_id, "/", options.node_rank);
  shape.master_address = meeting.store.host;
  shape.master_port = meeting.master_port;
  const comm::Hello hello{.epoch = static_cast<uint64_t>(order.attempt),
                          .role = comm::Hello::Role::kAgent,
                          .id = shape.node_rank,
                          .name = absl::StrCat("agent of node ", shape.node_rank)};
  DT_ASSIGN_OR_RETURN(auto store, comm::StoreClient::Connect(meeting.store, session_.key(), hello,
                                                             Deadline::After(kMeetTime)));
  DT_ASSIGN_OR_RETURN(
      auto agents,
      StorePeers::Create(std::move(store),
                         {.node = shape.node_rank, .nodes = static_cast<int>(order.nodes.size())}));
  DT_ASSIGN_OR_RETURN(const auto peers,
                      ElasticPeers::Create(std::move(agents), *lobby_, order.attempt,
                                           [this](const auto& text) { session_.Say(text); }));
  calls_->SetAttempt(AskedAttempt{order.attempt, meeting.store, order.nodes});
  absl::StatusOr<AttemptResult> result =
      session_.RunAttempt(std::move(shape), meeting.log_number, *peers);
  calls_->SetAttempt(std::nullopt);
  cannot_start_ = !result.ok();
  return result;
}

// Node 0 prepares the run directory and serves the attempt's store; the others wait for it.
absl::StatusOr<Meeting> ElasticNodeLaunch::Meet(const LobbyOrder& order, int ranks) {
  if (is_first()) {
    absl::StatusOr<Meeting> meeting = Serve(order, ranks);
    Meeting told = meeting.ok() ? *meeting : Meeting{.error = meeting.status()};
    DT_RETURN_IF_ERROR(lobby_->Tell(MeetingKey(order.term, order.attempt), Encode(told)));
    return meeting;
  }
  const auto cancelled = [this, &order] {
    met_signal_ = session_.TakeStopSignal();
    return lobby_->TakeStop(order.attempt).has_value() ? SIGTERM : met_signal_;
  };
  DT_ASSIGN_OR_RETURN(const std::string text,
                      InSlices(Deadline::After(kMeetTime), cancelled, [&](Deadline slice) {
                        return lobby_->Ask(MeetingKey(order.term, order.attempt), slice);
                      }));
  DT_ASSIGN_OR_RETURN(Meeting meeting, ParseMeeting(text, endpoint_.host));
  DT_RETURN_IF_ERROR(Annotate(meeting.error, "node 0 cannot start"));
  return meeting;
}

// --fresh is for the job's first attempt that node 0 begins, whatever its number is: a coordinator
// may have ended when only others had heard of one before.
absl::StatusOr<Meeting> ElasticNodeLaunch::Serve(const LobbyOrder& order, int ranks) {
  const int attempt = order.attempt;
  const bool may_be_first = !has_readied_ && FirstAttempt(session_.options()) == 0;
  const bool begins_job = may_be_first && BeginsJob(order, first_term_);
  if (may_be_first && !begins_job &&
      absl::c_linear_search(session_.options().arguments, "--fresh")) {
    session_.Say(
        "--fresh is not followed, because other nodes are in this job since before node 0 was "
        "started: it goes on from its newest durable step; to begin anew, stop the job on all "
        "nodes first");
  }
  Meeting meeting;
  DT_ASSIGN_OR_RETURN(const int next_log, session_.ReadyRunDirectory(begins_job, ranks));
  has_readied_ = true;
  // A node 0 that follows another may not see the logs of the attempts before it. Those of the
  // other nodes are at least as many.
  meeting.log_number = std::max(next_log, attempt);
  DT_ASSIGN_OR_RETURN(attempt_store_, comm::StoreServer::Create(endpoint_.host, 0, session_.key(),
                                                                static_cast<uint64_t>(attempt)));
  meeting.store = {endpoint_.host, attempt_store_->port()};
  meeting.run_id = session_.run_id();
  meeting.master_port = FreePort(endpoint_.host);
  meeting.begins_job = begins_job;
  return meeting;
}

}  // namespace

int RunElastic(NodeSession& session) { return ElasticNodeLaunch(session).Run(); }

}  // namespace dtrain::launcher
