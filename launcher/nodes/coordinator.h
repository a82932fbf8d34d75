// The coordinator of an elastic job, on node 0: serves the lobby, hears of its agents, and
// publishes what CoordinatorState decides. One that follows another of the same job adopts its
// attempt. One that cannot go on tells every agent why.
//
// Owns the lobby's store and a thread. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "comm/net/job_key.h"
#include "comm/net/store_client.h"
#include "comm/net/store_server.h"
#include "launcher/nodes/coordinator_state.h"
#include "launcher/nodes/lobby.h"

namespace dtrain::launcher {

struct CoordinatorOptions {
  comm::Endpoint endpoint;  // On this host; port 0: a free one.
  comm::JobKey key;
  ElasticOptions job;
  // An agent of which nothing is heard for so long is lost. Time in which the coordinator itself
  // did not run is not counted.
  absl::Duration silence = absl::Milliseconds(900);
  // How long it decides nothing behind the loss of node 0's agent, with which it should end itself.
  absl::Duration own_end = absl::Seconds(2);
  // How long its end waits for the agents to have read the last order and to be gone.
  absl::Duration farewell = absl::Seconds(2);
  double started_at = 0;         // When the first coordinator of the job started, in Unix seconds.
  Clock& clock = Clock::Real();  // For its term and the limits of the job.
};

class Coordinator {
 public:
  static absl::StatusOr<std::unique_ptr<Coordinator>> Start(const CoordinatorOptions& options);
  // Waits until the agents have read the last order and are gone, options.farewell at most.
  ~Coordinator();

  const comm::Endpoint& endpoint() const { return server_->endpoint(); }

 private:
  explicit Coordinator(const CoordinatorOptions& options);
  absl::StatusOr<std::unique_ptr<comm::StoreClient>> Connect() const;
  void Run();
  void GiveUp(const absl::Status& why);
  absl::Status ReadMessage(int64_t& next, std::vector<LobbyMessage>& messages);
  absl::Status ReadRest(int64_t& next, std::vector<LobbyMessage>& messages);
  void NoteConnections(LobbyNews& news);
  void AwaitOwnEnd() const;
  absl::Status Publish();
  void TellNodes(int64_t now_nanos);
  absl::Status Send(const LobbyOrder& order) { return SendBy(*store_, order); }
  absl::Status SendBy(comm::StoreClient& store, const LobbyOrder& order);

  const CoordinatorOptions options_;
  std::mutex mutex_;
  std::set<std::string> heard_;    // Guarded by mutex_.
  std::vector<std::string> gone_;  // Guarded by mutex_.
  std::unique_ptr<comm::StoreServer> server_;
  std::unique_ptr<comm::StoreClient> store_;
  // Used by the thread alone.
  CoordinatorState state_;
  int64_t next_order_ = 1;
  int64_t told_nanos_ = 0;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace dtrain::launcher
