#include "launcher/rendezvous.h"

#include <csignal>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/json.h"
#include "base/status.h"
#include "comm/net/socket.h"
#include "comm/net/store_client.h"
#include "launcher/machine.h"
#include "launcher/store_peers.h"

namespace dtrain::launcher {
namespace {

constexpr absl::Duration kSlice = absl::Milliseconds(100);
constexpr char kJobKey[] = "launch/job";

std::string NodeKey(int node) { return absl::StrCat("launch/node/", node); }

absl::Status Stopped(int signal) {
  return signal == SIGINT ? absl::CancelledError("SIGINT while waiting for the other nodes")
                          : absl::AbortedError("stop signal while waiting for the other nodes");
}

// Runs `attempt` in short slices until it gives something other than DeadlineExceeded.
template <typename Attempt>
auto InSlices(Deadline deadline, const std::function<int()>& cancelled, Attempt attempt)
    -> decltype(attempt(deadline)) {
  while (true) {
    auto result = attempt(Earlier(deadline, Deadline::After(kSlice)));
    const absl::Status status = [&result] {
      if constexpr (std::is_same_v<decltype(result), absl::Status>) {
        return result;
      } else {
        return result.status();
      }
    }();
    if (!absl::IsDeadlineExceeded(status) || deadline.Expired()) {
      return result;
    }
    if (const int signal = cancelled(); signal != 0) {
      return Stopped(signal);
    }
  }
}

absl::Status MissingNodes(comm::Store& store, int nodes, Deadline deadline,
                          const absl::Status& status) {
  std::vector<std::string> keys;
  for (int node = 0; node < nodes; ++node) {
    keys.push_back(NodeKey(node));
  }
  const auto here = store.Check(keys, deadline);
  if (!absl::IsDeadlineExceeded(status) || !here.ok()) {
    return status;
  }
  std::vector<int> missing;
  for (int node = 0; node < nodes; ++node) {
    if (!(*here)[static_cast<size_t>(node)]) {
      missing.push_back(node);
    }
  }
  return absl::DeadlineExceededError(
      absl::StrFormat("node %s did not join in time; start `dtrain launch --node-rank R` there, or "
                      "wait longer with "
                      "--rdzv-conf join_timeout=SECONDS",
                      absl::StrJoin(missing, ", ")));
}

}  // namespace

absl::StatusOr<Rendezvous> Rendezvous::Join(const JoinRequest& request,
                                            const std::function<int()>& cancelled) {
  Rendezvous meeting;
  meeting.shape_.attempt = request.attempt;
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
  auto server = comm::StoreServer::Create(endpoint.host, endpoint.port, request.key,
                                          static_cast<uint64_t>(request.attempt));
  DT_RETURN_IF_ERROR(Annotate(
      server.status(), absl::StrFormat("node 0 cannot serve --rdzv-endpoint %s (it must be an "
                                       "address of this host, and a free port)",
                                       request.options.rendezvous)));
  server_ = *std::move(server);
  return absl::OkStatus();
}

absl::Status Rendezvous::JoinNodes(const JoinRequest& request,
                                   const std::function<int()>& cancelled) {
  const LaunchOptions& options = request.options;
  const Deadline deadline = Deadline::After(options.join_timeout);
  DT_ASSIGN_OR_RETURN(const comm::Endpoint endpoint, comm::ParseEndpoint(options.rendezvous));
  if (options.node_rank == 0) {
    DT_RETURN_IF_ERROR(Serve(request, endpoint));
  }
  const comm::Hello hello{.epoch = static_cast<uint64_t>(request.attempt),
                          .role = comm::Hello::Role::kAgent,
                          .id = options.node_rank,
                          .name = absl::StrCat("agent of node ", options.node_rank)};
  DT_ASSIGN_OR_RETURN(auto store, InSlices(deadline, cancelled, [&](Deadline slice) {
                        auto client = comm::StoreClient::Connect(
                            endpoint, request.key, hello,
                            Earlier(deadline, Deadline::After(absl::Seconds(2))));
                        static_cast<void>(slice);
                        // Not there yet, or still the store of the attempt before.
                        return client.ok() || absl::IsPermissionDenied(client.status())
                                   ? std::move(client)
                                   : absl::StatusOr<std::unique_ptr<comm::StoreClient>>(
                                         absl::DeadlineExceededError(client.status().message()));
                      }));
  std::string own_address = options.local_address;
  if (own_address.empty()) {
    own_address = store->local_endpoint().host;
  }
  if (options.node_rank == 0) {
    DT_RETURN_IF_ERROR(store->Set(kJobKey,
                                  DumpJson(Json{{"run_id", request.run_id},
                                                {"nodes", options.nodes},
                                                {"master_port", FreePort(endpoint.host)}}),
                                  deadline));
  }
  DT_ASSIGN_OR_RETURN(
      const std::string job_text,
      InSlices(deadline, cancelled, [&](Deadline slice) { return store->Get(kJobKey, slice); }));
  DT_ASSIGN_OR_RETURN(const Json job, ParseJson(job_text, "job of node 0"));
  if (job.value("nodes", 0) != options.nodes) {
    return absl::FailedPreconditionError(
        absl::StrFormat("node 0 was started with --nnodes %d, this node with %d",
                        job.value("nodes", 0), options.nodes));
  }
  DT_ASSIGN_OR_RETURN(const auto arrival,
                      store->CompareExchange(NodeKey(options.node_rank), std::nullopt,
                                             absl::StrCat(request.local_ranks), deadline));
  if (!arrival.exchanged) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "another agent is node %d already; give each node its own --node-rank", options.node_rank));
  }
  for (int node = 0; node < options.nodes; ++node) {
    const auto ranks = InSlices(deadline, cancelled,
                                [&](Deadline slice) { return store->Get(NodeKey(node), slice); });
    DT_RETURN_IF_ERROR(
        MissingNodes(*store, options.nodes, Deadline::After(absl::Seconds(1)), ranks.status()));
    DT_ASSIGN_OR_RETURN(const int count, RanksOnNode(*ranks, 1, 0));
    shape_.ranks_of_node.push_back(count);
  }
  shape_.run_id = job.value("run_id", "");
  shape_.store = endpoint.ToString();
  shape_.host_address = own_address;
  shape_.node_id = absl::StrCat(shape_.run_id, "/", options.node_rank);
  shape_.master_address = endpoint.host;
  shape_.master_port = job.value("master_port", 0);
  DT_ASSIGN_OR_RETURN(peers_,
                      StorePeers::Create(std::move(store), {options.node_rank, options.nodes}));
  return absl::OkStatus();
}

Rendezvous::~Rendezvous() { peers_.reset(); }

}  // namespace dtrain::launcher
