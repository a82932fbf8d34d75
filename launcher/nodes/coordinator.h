// The coordinator of an elastic job, on node 0: serves the lobby, hears of its agents, and carries
// out what ElasticJob decides.
//
// Owns the lobby's store and a thread. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/net/job_key.h"
#include "comm/net/store_client.h"
#include "comm/net/store_server.h"
#include "launcher/nodes/elastic_job.h"
#include "launcher/nodes/lobby.h"

namespace dtrain::launcher {

struct CoordinatorOptions {
  comm::Endpoint endpoint;  // On this host; port 0: a free one.
  comm::JobKey key;
  ElasticOptions job;
  // An agent of which nothing is heard for so long is lost. Time in which the coordinator itself
  // did not run is not counted.
  absl::Duration silence = absl::Milliseconds(900);
};

class Coordinator {
 public:
  static absl::StatusOr<std::unique_ptr<Coordinator>> Start(const CoordinatorOptions& options);
  // Waits until the agents have read the last order and are gone, 2 s at most.
  ~Coordinator();

  const comm::Endpoint& endpoint() const { return server_->endpoint(); }

 private:
  struct Agent {
    std::string name;
    absl::Duration silent = absl::ZeroDuration();
  };

  explicit Coordinator(const CoordinatorOptions& options);
  void Run();
  absl::Status ReadMessage(int64_t& next);
  void Handle(const LobbyMessage& message, int64_t now);
  void Drain(const LobbyMessage& message, int64_t now);
  void TakeLosses(int64_t now, absl::Duration passed);
  absl::Status Publish();
  absl::Status Send(const LobbyOrder& order);
  LobbyOrder OrderOf(const ElasticAction& action) const;
  int IdOf(const std::string& name) const;

  const CoordinatorOptions options_;
  std::mutex mutex_;
  std::set<std::string> heard_;    // Guarded by mutex_.
  std::vector<std::string> gone_;  // Guarded by mutex_.
  std::unique_ptr<comm::StoreServer> server_;
  std::unique_ptr<comm::StoreClient> store_;
  // Used by the thread alone.
  ElasticJob job_;
  std::map<int, Agent> agents_;       // By id.
  std::map<int, ElasticNode> nodes_;  // By id.
  int next_id_ = 0;
  int64_t next_order_ = 1;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace dtrain::launcher
