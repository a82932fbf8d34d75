// The lobby of an elastic job: where its agents meet, and stay as long as the job lasts.
//
// Node 0's coordinator serves it as a store of its own, beside the stores of the attempts. An agent
// posts messages to the coordinator and reads its orders, both as numbered values that are written
// once. Its regular reads also show that it lives; the server tells who was heard and whose
// connection has ended. This file has the messages, and the agents' side: a connection and a thread
// that reads orders. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "comm/net/job_key.h"
#include "comm/net/socket.h"
#include "comm/net/store_client.h"
#include "launcher/nodes/elastic_job.h"

namespace dtrain::launcher {

// The epoch of the lobby's store. No attempt has this number.
inline constexpr uint64_t kLobbyEpoch = uint64_t{1} << 40;

// From an agent to the coordinator.
struct LobbyMessage {
  enum class Kind { kJoin, kReport, kLeave, kStop, kDrain };
  Kind kind = Kind::kJoin;
  std::string from;         // The name of the agent's connection.
  ElasticNode node = {};    // kJoin.
  NodeReport report = {};   // kReport.
  int signal = 0;           // kStop.
  std::string target = {};  // kDrain: the number or the host of a node.

  std::string Encode() const;
  static absl::StatusOr<LobbyMessage> Parse(absl::string_view text);
};

// From the coordinator to all agents.
struct LobbyOrder {
  enum class Kind { kStart, kStop, kPark, kDismiss, kEnd, kAnswer };
  Kind kind = Kind::kStart;
  int attempt = 0;
  std::vector<std::string> names = {};  // Agents: kStart: by node rank; else to whom.
  std::vector<ElasticNode> nodes = {};  // kStart: as `names`.
  bool save = false;                    // kStop.
  int code = 0;      // kDismiss, kEnd: the exit code. kAnswer: 0 if the node will leave.
  std::string text;  // Why; kAnswer: the name of the node, or why not.

  std::string Encode() const;
  static absl::StatusOr<LobbyOrder> Parse(absl::string_view text);
};

std::string LobbyInboxKey(int64_t number);
std::string LobbyOrderKey(int64_t number);

struct LobbyJoin {
  comm::Endpoint endpoint;
  comm::JobKey key;
  ElasticNode node;
  absl::Duration timeout;  // For the coordinator to be there.
};

class LobbyAgent {
 public:
  // Waits for the coordinator, and joins. `cancelled` is asked about every 100 ms and gives the
  // stop signal that arrived, or 0.
  static absl::StatusOr<std::unique_ptr<LobbyAgent>> Join(const LobbyJoin& join,
                                                          const std::function<int()>& cancelled);
  ~LobbyAgent();

  absl::Status Post(LobbyMessage message);
  // A value by which agents tell each other something, without the coordinator. Ask waits for it.
  absl::Status Tell(const std::string& key, const std::string& value);
  absl::StatusOr<std::string> Ask(const std::string& key, Deadline deadline);
  // The next order but kStop and kAnswer. Nothing: `timeout` has passed. Unavailable: the
  // coordinator is lost. An order to start, wait or leave that is for others only is left out.
  absl::StatusOr<std::optional<LobbyOrder>> Next(absl::Duration timeout);
  // The first order since the last call that ends `attempt`: kStop, or one that shows that the
  // coordinator has gone on without this node.
  std::optional<LobbyOrder> TakeStop(int attempt);
  // Waits for the answer to kDrain.
  absl::StatusOr<LobbyOrder> AwaitAnswer(absl::Duration timeout);
  // Waits until the node of this name has left, or the job has ended.
  absl::Status AwaitDismissal(const std::string& name, absl::Duration timeout);
  absl::Status health() const;
  // Becomes readable when TakeStop may have something, or the coordinator is lost.
  int poll_fd() const { return event_.get(); }
  const std::string& name() const { return name_; }
  std::string local_address() const { return store_->local_endpoint().host; }

 private:
  LobbyAgent(std::unique_ptr<comm::StoreClient> store, std::string name, UniqueFd event);
  void Run(int64_t next);
  void Take(LobbyOrder order);
  bool IsForMe(const LobbyOrder& order) const;

  const std::unique_ptr<comm::StoreClient> store_;
  const std::string name_;
  UniqueFd event_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<LobbyOrder> orders_;
  std::deque<LobbyOrder> stops_;
  std::deque<LobbyOrder> answers_;
  std::vector<std::string> dismissed_;  // What the orders say of nodes that have left.
  bool ended_ = false;
  absl::Status health_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace dtrain::launcher
