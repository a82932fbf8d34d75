// Serves a key-value store to everyone who holds the job's key.
//
// Two threads: the gate's (handshakes) and one event loop. A slow client does not delay others: its
// requests are read only while its answers drain, and the memory that it can use is bounded.
// Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "comm/net/gate.h"
#include "comm/net/job_key.h"
#include "comm/net/key_values.h"
#include "comm/net/secure_stream.h"
#include "comm/net/socket.h"

namespace dtrain::comm {

struct StoreRequest;
struct StoreReply;

struct StoreServerOptions {
  ListenOptions listen;
  GateOptions gate;
  size_t bytes_max = 256U << 20;        // Limit on keys and values; beyond: ResourceExhausted.
  size_t client_output_max = 4U << 20;  // Unsent answers above which a client is not read.
  size_t client_waits_max = 4096;       // Waiting requests of one client.
  // Called in the server's thread for a client that has sent a request, and for one whose
  // connection has ended. They must not block. Null: nobody asks.
  std::function<void(const Hello&)> heard = nullptr;
  std::function<void(const Hello&)> gone = nullptr;
};

class StoreServer {
 public:
  // Listens on `bind_address` (port 0: a free one) and serves until destroyed.
  static absl::StatusOr<std::unique_ptr<StoreServer>> Create(
      const std::string& bind_address, int port, const JobKey& key, uint64_t epoch,
      const StoreServerOptions& options = {});
  // Drops all clients (they see Unavailable) and joins; never waits for a client.
  ~StoreServer();

  int port() const { return endpoint().port; }
  const Endpoint& endpoint() const { return gate_->endpoint(); }
  // Bytes of keys, values and buffers for clients.
  size_t BytesInUse() const { return bytes_in_use_.load(); }
  int clients() const { return client_count_.load(); }
  uint64_t rejected() const { return gate_->rejected(); }

 private:
  struct Client;
  // A request that waits until `missing` keys exist.
  struct Waiting {
    uint64_t client = 0;
    uint64_t request = 0;
    bool wants_value = false;
    size_t missing = 0;
    std::vector<std::string> keys;
  };

  StoreServer(const StoreServerOptions& options, UniqueFd epoll, UniqueFd wake);
  void Run();
  void TakeNewClients();
  void Serve(uint64_t id);
  absl::Status ServeRequests(Client& client);
  absl::Status Answer(Client& client, const StoreRequest& request);
  void Reply(Client& client, const StoreReply& reply, KeyValues::Value value);
  absl::Status Park(Client& client, const StoreRequest& request, std::vector<std::string> missing);
  void KeyAppeared(const std::string& key);
  void ForgetWait(uint64_t wait);
  void Drop(uint64_t id, const absl::Status& why);
  void UpdateInterest(Client& client);
  void FlushAnswers();

  const StoreServerOptions options_;
  UniqueFd epoll_;
  UniqueFd wake_;  // An eventfd: new clients, or stop.
  std::mutex mutex_;
  std::vector<std::unique_ptr<SecureStream>> arrivals_;  // Guarded by mutex_.
  std::atomic<bool> stop_{false};
  std::atomic<size_t> bytes_in_use_{0};
  std::atomic<int> client_count_{0};

  // Only the loop's thread touches the members below.
  KeyValues values_;
  uint64_t next_client_ = 1;  // 0 is the wake descriptor.
  uint64_t next_wait_ = 1;
  size_t waiting_bytes_ = 0;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Client>> clients_;
  absl::flat_hash_map<uint64_t, Waiting> waits_;
  absl::flat_hash_map<std::string, absl::flat_hash_set<uint64_t>> waits_of_key_;
  absl::flat_hash_set<uint64_t> flush_;  // Clients with answers to send.
  absl::flat_hash_set<uint64_t> again_;  // Clients with requests that epoll does not see.
  size_t client_bytes_ = 0;

  std::thread thread_;
  std::unique_ptr<Gate> gate_;  // Last: its thread uses arrivals_.
};

}  // namespace dtrain::comm
