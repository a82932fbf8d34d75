// The door of a listening socket: only peers that finish a handshake in time get in.
//
// One thread accepts and drives all handshakes without blocking, so no stranger delays another.
// Limits: `pending_max` unfinished handshakes, `per_address_max` from one address (loopback counts
// only towards the first), `handshake_timeout` each. When a limit is hit, the oldest unfinished
// handshake makes room if it has had `grace`; otherwise the newcomer is closed (honest clients try
// again). Refusals are counted and logged at most once a minute; the peer learns no reason.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"
#include "comm/net/socket.h"

namespace dtrain::comm {

// One connection on its way in.
class Handshake {
 public:
  virtual ~Handshake() = default;
  virtual int fd() const = 0;
  // Makes progress without waiting; kNothing: authenticated. An error ends the connection.
  virtual absl::StatusOr<IoWant> Advance() = 0;
};

struct GateOptions {
  std::string name = "listener";  // For log lines.
  int pending_max = 64;
  int per_address_max = 4;
  bool loopback_exempt = true;  // From per_address_max: the ranks of a node start together.
  absl::Duration handshake_timeout = absl::Seconds(5);
  absl::Duration grace = absl::Milliseconds(250);
  absl::Duration log_interval = absl::Minutes(1);
  absl::Duration user_timeout = absl::Seconds(30);  // TCP_USER_TIMEOUT of accepted sockets.
};

class Gate {
 public:
  using Factory = std::function<absl::StatusOr<std::unique_ptr<Handshake>>(UniqueFd)>;
  // Called in the gate's thread with an authenticated connection; must not block.
  using Admit = std::function<void(std::unique_ptr<Handshake>)>;

  static absl::StatusOr<std::unique_ptr<Gate>> Create(const Endpoint& where,
                                                      const ListenOptions& listen,
                                                      const GateOptions& options, Factory factory,
                                                      Admit admit);
  // Closes the socket and all unfinished handshakes; joins the thread, which never blocks.
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  const Endpoint& endpoint() const { return endpoint_; }
  // Connections refused so far.
  uint64_t rejected() const { return rejected_.load(); }

 private:
  struct Pending {
    std::unique_ptr<Handshake> handshake;
    std::string address;
    int64_t since_nanos = 0;
    IoWant want = IoWant::kRead;
  };
  Gate(UniqueFd listener, UniqueFd wake, const GateOptions& options, Factory factory, Admit admit);
  void Run();
  void AcceptAll();
  bool MakeRoom(const std::string& address, bool exempt, int64_t now);
  void AdvanceOne(std::list<Pending>::iterator pending);
  void Reject(const std::string& address, const std::string& reason);
  void LogRejects(int64_t now);

  const GateOptions options_;
  const Factory factory_;
  const Admit admit_;
  UniqueFd listener_;
  UniqueFd wake_;  // An eventfd that ends Run.
  Endpoint endpoint_;
  std::list<Pending> pending_;  // Oldest first. Only the thread touches it.
  std::string last_reject_;
  uint64_t rejects_logged_ = 0;
  int64_t logged_at_nanos_ = 0;
  int64_t accept_again_nanos_ = 0;  // After the process ran out of descriptors.
  std::atomic<uint64_t> rejected_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace dtrain::comm
