// Peers over the coordinator's store: an append-only list of orders, and a beat of each agent.
//
// One thread reads orders and sends this agent's beat; node 0's also watches the beats of the
// others and, where it is told of them, the ends of their connections. What agents share goes up a
// tree (node_tree.h), so that no agent reads more than some hundred messages in a beat. The store
// is closed first on destruction, so the join never waits for the network.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "comm/net/store_client.h"
#include "launcher/nodes/awake_time.h"
#include "launcher/nodes/gone_agents.h"
#include "launcher/nodes/peers.h"

namespace dtrain::launcher {

struct StorePeersOptions {
  int node = 0;
  int nodes = 1;
  absl::Duration beat_interval = absl::Seconds(1);
  // An agent without a beat for this long counts as lost. Time in which node 0 itself did not run
  // is not counted.
  absl::Duration beat_timeout = absl::Seconds(15);
  Clock& clock = Clock::Real();  // For beats and silences.
  // Node 0: whose connections to the store have ended. Null: only silence tells of a lost agent.
  std::shared_ptr<GoneAgents> gone = nullptr;
};

// The key under which the agent of `node` says by which name its connection is known.
std::string AgentNameKey(int node);
// The key under which it says on which host it runs.
std::string HostKey(int node);
// The key under which it answers the question that `answers` names (Order::answers).
std::string AnswerKey(const std::string& answers, int node);
// The list of orders.
inline constexpr char kOrderList[] = "launch/orders";

class StorePeers final : public Peers {
 public:
  static absl::StatusOr<std::unique_ptr<StorePeers>> Create(
      std::unique_ptr<comm::StoreClient> store, const StorePeersOptions& options);
  // Says goodbye; node 0 waits up to 2 s for the others' goodbyes, because its store ends next.
  ~StorePeers() override;

  int poll_fd() const override { return event_.get(); }
  std::vector<Order> Take() override;
  absl::Status health() const override;
  void Publish(Order order) override;
  int nodes() const override { return options_.nodes; }
  void Share(std::string summary) override;
  void ShareAtOnce(std::string summary) override;
  std::vector<std::pair<int, std::string>> TakeShared() override;
  void Answer(const Order& question, const std::string& text) override;
  // From now on health() is not OK, and the destructor waits for nobody.
  void GiveUp(const absl::Status& why) { Fail(why); }

 private:
  StorePeers(std::unique_ptr<comm::StoreClient> store, const StorePeersOptions& options,
             UniqueFd event);
  void Run();
  absl::Status ReadOrder(int64_t& next);
  absl::Status WatchConnections();
  absl::Status WatchBeats();
  absl::Status LookAtBeats(int64_t awake_nanos);
  absl::Status SendShared();
  absl::Status ReadShared(const std::vector<int>& nodes);
  absl::Status ReadOrdered(const Order& order);
  void Fail(const absl::Status& status);
  void Wake();

  const std::unique_ptr<comm::StoreClient> store_;
  const StorePeersOptions options_;
  UniqueFd event_;
  mutable std::mutex mutex_;
  std::vector<Order> orders_;                        // Guarded by mutex_.
  absl::Status health_;                              // Guarded by mutex_.
  std::string to_share_;                             // Guarded by mutex_.
  std::vector<std::pair<int, std::string>> shared_;  // Guarded by mutex_.
  std::atomic<bool> stop_{false};
  struct Beat {
    int64_t count = 0;
    int64_t seen_nanos = 0;  // By the clock of awake_.
  };
  // Used by the thread only.
  std::vector<Beat> beats_;
  int64_t own_beat_nanos_;
  AwakeTime awake_;
  const std::vector<int> below_;  // In the tree of nodes.
  std::thread thread_;
};

}  // namespace dtrain::launcher
