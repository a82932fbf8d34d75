#include "launcher/nodes/rendezvous.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/console/wait_notice.h"
#include "base/json.h"
#include "base/status.h"
#include "comm/net/socket.h"
#include "comm/net/store_client.h"
#include "launcher/hosts/node_messages.h"
#include "launcher/machine.h"
#include "launcher/nodes/node_zero.h"
#include "launcher/nodes/store_peers.h"

namespace dtrain::launcher {
namespace {

constexpr char kJobKey[] = "launch/job";
constexpr char kReadyKey[] = "launch/ready";  // Holds the result of node 0's `prepare`.

std::string NodeKey(int node) { return absl::StrCat("launch/node/", node); }

// The nodes that have not joined.
absl::StatusOr<std::vector<int>> MissingNodes(comm::Store& store, int nodes) {
  std::vector<std::string> keys;
  for (int node = 0; node < nodes; ++node) {
    keys.push_back(NodeKey(node));
  }
  DT_ASSIGN_OR_RETURN(const std::vector<bool> here,
                      store.Check(keys, Deadline::After(absl::Seconds(1))));
  std::vector<int> missing;
  for (int node = 0; node < nodes; ++node) {
    if (!here[static_cast<size_t>(node)]) {
      missing.push_back(node);
    }
  }
  return missing;
}

absl::Status NameMissingNodes(comm::Store& store, int nodes, const absl::Status& status) {
  if (!absl::IsDeadlineExceeded(status)) {
    return status;
  }
  const auto missing = MissingNodes(store, nodes);
  if (!missing.ok() || missing->empty()) {
    return status;
  }
  return absl::DeadlineExceededError(
      absl::StrFormat("node %s did not join in time; start `dtrain launch --node-rank R` there, or "
                      "wait longer with "
                      "--rdzv-conf join_timeout=SECONDS",
                      absl::StrJoin(*missing, ", ")));
}

// The log line while some nodes have not come to `where`.
std::string NodesToCome(comm::Store& store, int nodes, const std::string& where) {
  const auto missing = MissingNodes(store, nodes);
  return missing.ok() && !missing->empty()
             ? absl::StrFormat("%d of %d nodes have come to %s; still to come: node%s %s",
                               nodes - static_cast<int>(missing->size()), nodes, where,
                               missing->size() == 1 ? "" : "s", absl::StrJoin(*missing, ", "))
             : "";
}

Json AnswerOf(const absl::StatusOr<int>& first) {
  return first.ok() ? Json{{"code", 0}, {"log_number", *first}}
                    : Json{{"code", static_cast<int>(first.status().code())},
                           {"message", std::string(first.status().message())}};
}

comm::Hello HelloOf(const JoinRequest& request, const std::string& name) {
  return {.epoch = static_cast<uint64_t>(request.attempt),
          .role = comm::Hello::Role::kAgent,
          .id = request.options.node_rank,
          .name = name};
}

// Whether this node may be one of node 0's `job`.
absl::Status CheckJob(const Json& job, const JoinRequest& request) {
  if (job.value("nodes", 0) != request.options.nodes) {
    return absl::FailedPreconditionError(
        absl::StrFormat("node 0 was started with --nnodes %d, this node with %d",
                        job.value("nodes", 0), request.options.nodes));
  }
  return CheckVersion(job.value("version", ""));
}

// Makes this agent, which is connected as `name`, the one of its node.
absl::Status ClaimNode(const JoinRequest& request, const std::string& name, comm::Store& store,
                       Deadline deadline) {
  const int node = request.options.node_rank;
  DT_ASSIGN_OR_RETURN(const auto arrival,
                      store.CompareExchange(NodeKey(node), std::nullopt,
                                            absl::StrCat(request.local_ranks), deadline));
  if (!arrival.exchanged) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "another agent is node %d already; give each node its own --node-rank", node));
  }
  DT_RETURN_IF_ERROR(store.Set(HostKey(node), HostName(), deadline));
  return store.Set(AgentNameKey(node), name, deadline);
}

}  // namespace

absl::StatusOr<Rendezvous> Rendezvous::Join(const JoinRequest& request,
                                            const std::function<int()>& cancelled) {
  Rendezvous meeting;
  meeting.shape_.attempt = request.attempt;
  meeting.shape_.begins_job = request.attempt == 0;
  meeting.shape_.node_rank = request.options.node_rank;
  if (request.options.nodes == 1) {
    DT_RETURN_IF_ERROR(meeting.JoinOneNode(request));
  } else {
    DT_RETURN_IF_ERROR(meeting.JoinNodes(request, cancelled));
  }
  return meeting;
}

absl::Status Rendezvous::JoinOneNode(const JoinRequest& request) {
  constexpr char kLoopback[] = "127.0.0.1";
  DT_ASSIGN_OR_RETURN(log_number_, request.prepare(request.local_ranks));
  DT_ASSIGN_OR_RETURN(server_, comm::StoreServer::Create(kLoopback, 0, request.key,
                                                         static_cast<uint64_t>(request.attempt)));
  shape_.ranks_of_node = {request.local_ranks};
  shape_.run_id = request.run_id;
  shape_.store = server_->endpoint().ToString();
  shape_.host_address = kLoopback;
  shape_.node_id = absl::StrCat(request.run_id, "/0");
  shape_.master_address = kLoopback;
  shape_.master_port = FreePort(kLoopback);
  return absl::OkStatus();
}

// Node 0 listens on the endpoint's address, which must be its own.
absl::Status Rendezvous::Serve(const JoinRequest& request, const comm::Endpoint& endpoint) {
  gone_ = std::make_shared<GoneAgents>();
  comm::StoreServerOptions serving;
  serving.gone = [gone = gone_](const comm::Hello& client) { gone->Add(client); };
  auto server = comm::StoreServer::Create(endpoint.host, endpoint.port, request.key,
                                          static_cast<uint64_t>(request.attempt), serving);
  if (!server.ok()) {
    return CannotServe(endpoint, server.status());
  }
  server_ = *std::move(server);
  return absl::OkStatus();
}

absl::Status Rendezvous::JoinNodes(const JoinRequest& request,
                                   const std::function<int()>& cancelled) {
  const LaunchOptions& options = request.options;
  const Deadline deadline = Deadline::After(options.join_timeout);
  DT_ASSIGN_OR_RETURN(comm::Endpoint endpoint, comm::ParseEndpoint(options.rendezvous));
  if (options.node_rank == 0) {
    DT_RETURN_IF_ERROR(Serve(request, endpoint));
    endpoint.port = server_->port();
    request.serving(endpoint);
  }
  DT_ASSIGN_OR_RETURN(const std::string name, UniqueAgentName(options.node_rank));
  DT_ASSIGN_OR_RETURN(auto store, ConnectToNodeZero(endpoint, request.key, HelloOf(request, name),
                                                    deadline, cancelled));
  const std::string own_address =
      options.local_address.empty() ? store->local_endpoint().host : options.local_address;
  if (options.node_rank == 0) {
    DT_RETURN_IF_ERROR(store->Set(kJobKey,
                                  DumpJson(Json{{"run_id", request.run_id},
                                                {"version", OwnVersion()},
                                                {"nodes", options.nodes},
                                                {"master_port", FreePort(endpoint.host)}}),
                                  deadline));
  }
  DT_ASSIGN_OR_RETURN(
      const std::string job_text,
      InSlices(deadline, cancelled, [&](Deadline slice) { return store->Get(kJobKey, slice); }));
  DT_ASSIGN_OR_RETURN(const Json job, ParseJson(job_text, "job of node 0"));
  DT_RETURN_IF_ERROR(CheckJob(job, request));
  DT_RETURN_IF_ERROR(ClaimNode(request, name, *store, deadline));
  DT_RETURN_IF_ERROR(CountRanks(request, *store, endpoint, deadline, cancelled));
  DT_RETURN_IF_ERROR(AwaitReady(request, *store, deadline, cancelled));
  shape_.run_id = job.value("run_id", "");
  shape_.store = endpoint.ToString();
  shape_.host_address = own_address;
  shape_.node_id = absl::StrCat(shape_.run_id, "/", options.node_rank);
  shape_.master_address = endpoint.host;
  shape_.master_port = job.value("master_port", 0);
  DT_ASSIGN_OR_RETURN(peers_, StorePeers::Create(std::move(store), {.node = options.node_rank,
                                                                    .nodes = options.nodes,
                                                                    .gone = gone_}));
  return absl::OkStatus();
}

// Reads the number of ranks of each node.
absl::Status Rendezvous::CountRanks(const JoinRequest& request, comm::Store& store,
                                    const comm::Endpoint& endpoint, Deadline deadline,
                                    const std::function<int()>& cancelled) {
  const LaunchOptions& options = request.options;
  const WaitNotice notice([&] { return NodesToCome(store, options.nodes, endpoint.ToString()); });
  for (int node = 0; node < options.nodes; ++node) {
    const auto ranks = InSlices(deadline, cancelled,
                                [&](Deadline slice) { return store.Get(NodeKey(node), slice); });
    DT_RETURN_IF_ERROR(NameMissingNodes(store, options.nodes, ranks.status()));
    DT_ASSIGN_OR_RETURN(const int count, RanksOnNode(*ranks, 1, 0));
    shape_.ranks_of_node.push_back(count);
  }
  return absl::OkStatus();
}

// Node 0 makes the run directory ready, and the others wait for it.
absl::Status Rendezvous::AwaitReady(const JoinRequest& request, comm::Store& store,
                                    Deadline deadline, const std::function<int()>& cancelled) {
  constexpr absl::Duration kAcknowledgeTime = absl::Seconds(2);
  const LaunchOptions& options = request.options;
  const auto acknowledged_key = [](int node) { return absl::StrCat("launch/heard/", node); };
  if (options.node_rank == 0) {
    const absl::StatusOr<int> log_number = request.prepare(shape_.world_size());
    DT_RETURN_IF_ERROR(store.Set(kReadyKey, DumpJson(AnswerOf(log_number)), deadline));
    if (!log_number.ok()) {  // The store ends with this node, so the others are told first.
      std::vector<std::string> acknowledged;
      for (int node = 1; node < options.nodes; ++node) {
        acknowledged.push_back(acknowledged_key(node));
      }
      store.Wait(acknowledged, Deadline::After(kAcknowledgeTime)).IgnoreError();
    }
    DT_RETURN_IF_ERROR(log_number.status());
    log_number_ = *log_number;
    return absl::OkStatus();
  }
  DT_ASSIGN_OR_RETURN(const std::string text, InSlices(deadline, cancelled, [&](Deadline slice) {
                        return store.Get(kReadyKey, slice);
                      }));
  DT_ASSIGN_OR_RETURN(const Json answer, ParseJson(text, "node 0's answer"));
  if (const int code = answer.value("code", 0); code != 0) {
    store.Set(acknowledged_key(options.node_rank), "1", deadline).IgnoreError();
    return absl::Status(static_cast<absl::StatusCode>(code),
                        absl::StrCat("node 0 cannot start: ", answer.value("message", "")));
  }
  log_number_ = answer.value("log_number", 0);
  return absl::OkStatus();
}

Rendezvous::~Rendezvous() { peers_.reset(); }

}  // namespace dtrain::launcher
