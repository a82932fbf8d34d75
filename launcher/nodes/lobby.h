// The lobby of an elastic job: where its agents meet, and stay as long as the job lasts.
//
// Node 0's coordinator serves it as a store of its own, beside the stores of the attempts. An agent
// posts messages to the coordinator and reads its orders, both as numbered values that are written
// once. Its regular reads also show that it lives; the server tells who was heard and whose
// connection has ended. This file has the agents' side: a connection and a thread that
// reads orders (lobby_messages.h, lobby_inbox.h). Thread-safe.
//
// An agent that loses the coordinator looks for its successor at the same address while its ranks
// go on, for LobbyJoin::patience at most. Each coordinator has a term, the time of its start; an
// agent follows none whose term is not later than that of the last one.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "comm/net/job_key.h"
#include "comm/net/socket.h"
#include "comm/net/store_client.h"
#include "launcher/nodes/lobby_inbox.h"
#include "launcher/nodes/lobby_messages.h"

namespace dtrain::launcher {

struct LobbyJoin {
  comm::Endpoint endpoint;
  comm::JobKey key;
  ElasticNode node;
  absl::Duration timeout;  // For the coordinator to be there.
  // How long a lost coordinator is waited for while ranks run.
  absl::Duration patience = absl::Seconds(30);
  LobbyMemory memory = {};
};

class LobbyAgent {
 public:
  // Waits for the coordinator, and joins. `cancelled` is asked about every 100 ms and gives the
  // stop signal that arrived, or 0.
  static absl::StatusOr<std::unique_ptr<LobbyAgent>> Join(const LobbyJoin& join,
                                                          const std::function<int()>& cancelled);
  ~LobbyAgent();

  // A report is kept for the coordinator's successor when it is lost.
  absl::Status Post(LobbyMessage message);
  // A value by which agents tell each other something, without the coordinator. Ask waits for it.
  absl::Status Tell(const std::string& key, const std::string& value);
  absl::StatusOr<std::string> Ask(const std::string& key, Deadline deadline);
  // Tells the spares that they may keep a process of the job's program in reserve. Neither blocks
  // for more than a second.
  void TellReserve();
  bool MayReserve();
  // The next order but kStop and kAnswer. Nothing: `timeout` has passed. Unavailable: the
  // coordinator is lost; the caller, which has no ranks, may join its successor. An order to start,
  // wait or leave that is for others only is left out.
  absl::StatusOr<std::optional<LobbyOrder>> Next(absl::Duration timeout);
  // The first order since the last call that ends `attempt`: kStop, or one that shows that the
  // coordinator has gone on without this node.
  std::optional<LobbyOrder> TakeStop(int attempt);
  // Waits for the answer to kDrain.
  absl::StatusOr<LobbyOrder> AwaitAnswer(absl::Duration timeout);
  // Waits until the node of this name has left, or the job has ended.
  absl::Status AwaitDismissal(const std::string& name, absl::Duration timeout);
  // Not OK when the coordinator is lost and has no successor, or has given this node up.
  absl::Status health() const;
  // For Join of another agent of this node.
  LobbyMemory memory() const;
  // Becomes readable when TakeStop may have something, or the coordinator is lost.
  int poll_fd() const { return event_.get(); }
  const std::string& name() const { return name_; }
  std::string local_address() const { return store()->local_endpoint().host; }

 private:
  LobbyAgent(const LobbyJoin& join, std::string name, UniqueFd event);
  // Connects, and learns the coordinator's term. FailedPrecondition: it is none to follow.
  absl::Status Connect(Deadline deadline, const std::function<int()>& cancelled,
                       absl::Duration try_time = absl::Seconds(2));
  absl::Status PostJoin();
  absl::Status Send(const LobbyMessage& message);
  void Run(int64_t next);
  absl::Status FollowSuccessor();
  void Fail(const std::string& why);
  std::shared_ptr<comm::StoreClient> store() const;

  const LobbyJoin join_;
  const std::string name_;
  UniqueFd event_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::shared_ptr<comm::StoreClient> store_;
  bool is_connected_ = false;
  int64_t term_ = 0;
  LobbyInbox inbox_;
  absl::Status health_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace dtrain::launcher
