// An authenticated, encrypted connection that carries frames: agents, tools and store clients.
//
// SecureChannel is thread-safe: one thread may wait in Receive while others Send. A Send that runs
// out of time may still reach the peer later; a Receive that runs out of time loses nothing.
// SecureListener accepts such connections in a thread of its own, so that strangers, port scans and
// slow peers delay nobody (see gate.h).
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/threads/bounded_queue.h"
#include "comm/net/frame.h"
#include "comm/net/gate.h"
#include "comm/net/job_key.h"
#include "comm/net/secure_stream.h"
#include "comm/net/socket.h"

namespace dtrain::comm {

class SecureChannel {
 public:
  // Connects, proves the key both ways and exchanges hellos. Tries again while nothing listens or
  // the server is full, until `deadline`. PermissionDenied: another key. Aborted: the server is at
  // another epoch (its message tells a stale client to stop).
  static absl::StatusOr<std::unique_ptr<SecureChannel>> Connect(const Endpoint& server,
                                                                const JobKey& key,
                                                                const Hello& hello,
                                                                Deadline deadline);
  explicit SecureChannel(std::unique_ptr<SecureStream> stream);
  ~SecureChannel();

  // Sends one frame; types 0-15 are reserved. REQUIRES: at most 16 MiB.
  absl::Status Send(uint32_t type, absl::string_view payload, Deadline deadline);
  // The next frame. Unavailable when the peer is gone.
  absl::StatusOr<Frame> Receive(Deadline deadline);
  // Makes all waiting and later calls of both ends fail with Unavailable. Never blocks.
  void Close();

  // The hello that the other end sent.
  const Hello& peer_hello() const { return peer_hello_; }
  // "10.0.0.1:5000 -> 10.0.0.2:6000".
  const std::string& name() const { return name_; }
  // For poll(2). Bytes may wait inside although the descriptor is silent: Receive first.
  int fd() const { return fd_; }

 private:
  std::mutex mutex_;  // Guards stream_; never held while waiting.
  std::unique_ptr<SecureStream> stream_;
  const Hello peer_hello_;
  const std::string name_;
  const int fd_;
};

struct SecureListenerOptions {
  ListenOptions listen;
  GateOptions gate;
  uint64_t epoch = 0;
  size_t ready_max = 4096;  // Authenticated connections that wait for Accept; more are refused.
};

class SecureListener {
 public:
  static absl::StatusOr<std::unique_ptr<SecureListener>> Create(
      const Endpoint& where, const JobKey& key, const SecureListenerOptions& options = {});
  ~SecureListener();

  // The next connection whose key and hello are good.
  absl::StatusOr<std::unique_ptr<SecureChannel>> Accept(Deadline deadline);
  const Endpoint& endpoint() const { return gate_->endpoint(); }
  int port() const { return endpoint().port; }
  uint64_t rejected() const { return gate_->rejected(); }

 private:
  explicit SecureListener(size_t ready_max) : ready_(ready_max) {}
  BoundedQueue<std::unique_ptr<SecureStream>> ready_;
  std::unique_ptr<Gate> gate_;  // Last: its thread uses ready_.
};

}  // namespace dtrain::comm
