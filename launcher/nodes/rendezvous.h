// How the agents of one attempt meet: node 0 serves the coordinator's store, every agent joins it,
// and all learn the ranks of each node.
//
// Each attempt has a store of its own, whose epoch is the attempt's number, so nothing of an
// earlier attempt can be read. A Rendezvous owns the store (on node 0) and the connection to it.
// Not thread-safe; the connection watch has its own thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "comm/net/job_key.h"
#include "comm/net/socket.h"
#include "comm/net/store.h"
#include "comm/net/store_server.h"
#include "launcher/nodes/gone_agents.h"
#include "launcher/nodes/peers.h"
#include "launcher/options.h"
#include "launcher/rank_plan.h"

namespace dtrain::launcher {

struct JoinRequest {
  const LaunchOptions& options;
  const comm::JobKey& key;
  int local_ranks = 1;
  int attempt = 0;
  std::string run_id;  // Node 0's value is used.
  // Called on node 0 when all nodes have joined and before another node writes to the run
  // directory: gets the number of ranks, prepares the directory and gives the number of the
  // attempt's logs.
  std::function<absl::StatusOr<int>(int world_size)> prepare;
  // Called on node 0 of several when its store listens, with the port that a port of 0 became.
  std::function<void(const comm::Endpoint&)> serving;
};

class Rendezvous {
 public:
  // Blocks until all nodes are here, options.join_timeout at most. `cancelled` is asked about every
  // 100 ms and returns the stop signal that arrived, or 0. Errors: DeadlineExceeded names the
  // missing nodes; FailedPrecondition: nodes disagree; Cancelled or Aborted: a stop signal; that of
  // `prepare`, on all nodes. The log says from time to time who is still to come.
  static absl::StatusOr<Rendezvous> Join(const JoinRequest& request,
                                         const std::function<int()>& cancelled);
  Rendezvous(Rendezvous&&) = default;
  ~Rendezvous();

  // ranks_of_node, node_rank, attempt, run_id, store, addresses and node_id are filled in.
  const JobShape& shape() const { return shape_; }
  // N of logs/attempt-N, the same on all nodes.
  int log_number() const { return log_number_; }
  Peers& peers() const { return *peers_; }

 private:
  Rendezvous() = default;
  absl::Status JoinOneNode(const JoinRequest& request);
  absl::Status Serve(const JoinRequest& request, const comm::Endpoint& endpoint);
  absl::Status JoinNodes(const JoinRequest& request, const std::function<int()>& cancelled);
  absl::Status CountRanks(const JoinRequest& request, comm::Store& store,
                          const comm::Endpoint& endpoint, Deadline deadline,
                          const std::function<int()>& cancelled);
  absl::Status AwaitReady(const JoinRequest& request, comm::Store& store, Deadline deadline,
                          const std::function<int()>& cancelled);

  JobShape shape_;
  int log_number_ = 0;
  std::shared_ptr<GoneAgents> gone_;                            // Node 0 only, of server_.
  std::unique_ptr<comm::StoreServer> server_;                   // Node 0 only.
  std::unique_ptr<Peers> peers_ = std::make_unique<NoPeers>();  // Destroyed before the server.
};

}  // namespace dtrain::launcher
