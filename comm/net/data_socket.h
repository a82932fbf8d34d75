// Data connections between ranks: authenticated once, then plain chunks with a CRC32C each, or TLS.
//
// Both ends prove the pair key (HMAC challenge, the server first). The data that follow are in
// clear, so an attacker who can rewrite packets on the path can alter them. With `tls` they go
// through TLS 1.3 with the pair key, which keeps them secret and finds every alteration. A message
// is sent by one Send and received by one Receive of the same size; different sizes on the two ends
// are an error that names both.
//
// One thread may send while another receives; two senders or two receivers at once are a bug.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/unique_fd.h"
#include "comm/net/gate.h"
#include "comm/net/job_key.h"
#include "comm/net/socket.h"
#include "comm/net/tls_psk.h"

namespace dtrain::comm {

// The ranks at the ends of a data connection.
struct DataPeers {
  uint64_t epoch = 0;
  int self = 0;
  int peer = 0;
  int channel = 0;  // Tells several connections of one pair apart.
};

struct DataSocketOptions {
  bool crc = true;  // Must be the same on both ends: the handshake checks it.
  // Must be the same on both ends too. TLS checks its records itself, so chunks have no CRC then.
  bool tls = false;
  // A chunk is summed while it is in the cache; both ends use the smaller of their values.
  uint32_t chunk_bytes = 256U << 10;  // In [4 KiB, 4 MiB].
  // How long the peer may acknowledge nothing, unless WaitForLateReader was called.
  absl::Duration user_timeout = kSilenceMax;
};

class DataSocket {
 public:
  // Connects to rank `peers.peer`'s DataListener and proves the pair key both ways. Tries again
  // while nothing listens or the listener is full, until `deadline`. PermissionDenied: the other
  // end has no such key (another job, epoch or rank).
  static absl::StatusOr<std::unique_ptr<DataSocket>> Connect(const Endpoint& where,
                                                             const JobKey& key,
                                                             const DataPeers& peers,
                                                             const DataSocketOptions& options,
                                                             Deadline deadline);
  // Moves one whole message. Unavailable: the peer is gone (HostFellSilent: or its host). DataLoss:
  // a chunk was altered; the message names the chunk. After an error the socket is of no further
  // use.
  absl::Status Send(absl::Span<const std::byte> message, Deadline deadline);
  absl::Status Receive(absl::Span<std::byte> message, Deadline deadline);

  // The non-blocking form, for loops over several sockets: makes progress without waiting; true
  // when the message is complete. Until then call again with the same span, e.g. when poll(2)
  // reports fd() ready. Send and Receive may finish a message that was begun so.
  absl::StatusOr<bool> TrySend(absl::Span<const std::byte> message);
  absl::StatusOr<bool> TryReceive(absl::Span<std::byte> message);

  // From now on the peer may leave data unread for as long as it likes, like a rank that computes
  // while others send ahead. This connection may then fail to notice a dead host; another one must.
  absl::Status WaitForLateReader() { return comm::WaitForLateReader(fd_.get()); }

  // Makes both ends fail with Unavailable; safe from any thread. Never blocks.
  void Shutdown();

  int fd() const { return fd_.get(); }
  const DataPeers& peers() const { return peers_; }
  // "rank 0 (10.0.0.1:5000) and rank 1 (10.0.0.2:6000)".
  const std::string& name() const { return name_; }
  uint32_t chunk_bytes() const { return options_.chunk_bytes; }

 private:
  friend class DataHandshake;
  struct ChunkHeader {
    uint32_t bytes = 0;
    uint32_t sequence = 0;
    uint32_t crc = 0;         // CRC of the payload; 0 when off.
    uint32_t header_crc = 0;  // CRC of the three fields before.
  };
  // `tls`: an open session on `fd`, when options say so.
  DataSocket(UniqueFd fd, const DataPeers& peers, const DataSocketOptions& options,
             std::optional<TlsSession> tls);
  // Move as much of header and payload as possible without waiting; give the payload bytes,
  // possibly 0.
  absl::StatusOr<size_t> Put(absl::Span<const std::byte> payload);
  absl::StatusOr<size_t> Get(absl::Span<std::byte> payload);
  void BeginChunk(absl::Span<const std::byte> message);
  absl::Status CheckHeader(size_t expected_bytes) const;
  absl::Status CheckPayload(absl::Span<const std::byte> chunk) const;
  absl::Status Broken(absl::string_view what, const absl::Status& why) const;

  UniqueFd fd_;
  const DataPeers peers_;
  const DataSocketOptions options_;
  const std::string name_;
  std::mutex tls_mutex_;  // A session is one thread's at a time, and two may use a socket.
  std::optional<TlsSession> tls_;

  ChunkHeader send_header_;
  uint32_t send_sequence_ = 0;
  size_t send_header_done_ = 0;  // Bytes of the header that are out.
  size_t send_chunk_end_ = 0;    // Offset in the message of the current chunk's end.
  size_t sent_ = 0;

  ChunkHeader receive_header_;
  uint32_t receive_sequence_ = 0;
  size_t receive_header_done_ = 0;
  size_t receive_chunk_done_ = 0;  // Bytes of the current chunk that are here.
  size_t received_ = 0;
};

class DataListener {
 public:
  struct Options {
    ListenOptions listen;
    GateOptions gate;
    DataSocketOptions socket;
    uint64_t epoch = 0;
    int self = 0;
    int world_size = 1;       // Other ranks are refused.
    size_t ready_max = 4096;  // Connections that wait for Accept; more are refused.
  };
  static absl::StatusOr<std::unique_ptr<DataListener>> Create(const Endpoint& where,
                                                              const JobKey& key,
                                                              const Options& options);
  ~DataListener();

  // The next authenticated connection; its peers() say which rank and channel.
  absl::StatusOr<std::unique_ptr<DataSocket>> Accept(Deadline deadline);
  // The connection of one rank and channel; others that come meanwhile are kept for later calls.
  absl::StatusOr<std::unique_ptr<DataSocket>> AcceptFrom(int rank, int channel, Deadline deadline);
  // Ends waiting and later calls of both with Cancelled. Any thread may call it.
  void Close();

  const Endpoint& endpoint() const { return gate_->endpoint(); }
  int port() const { return endpoint().port; }
  uint64_t rejected() const { return gate_->rejected(); }

 private:
  explicit DataListener(const Options& options) : options_(options) {}
  // The first ready connection that `fits`; `whom` is for the error.
  absl::StatusOr<std::unique_ptr<DataSocket>> Take(
      const std::function<bool(const DataPeers&)>& fits, const std::string& whom,
      Deadline deadline);

  const Options options_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::unique_ptr<DataSocket>> ready_;  // Guarded by mutex_.
  bool closed_ = false;                            // Guarded by mutex_.
  std::unique_ptr<Gate> gate_;                     // Last: its thread uses the rest.
};

}  // namespace dtrain::comm
