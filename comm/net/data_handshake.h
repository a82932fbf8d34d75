// How two ranks prove their pair key to each other. Internal to comm/net.
//
//   client -> server  68 bytes: magic, version, epoch, from, to, channel, flags, chunk bytes, nonce
//   server -> client  72 bytes: nonce, flags, chunk bytes, HMAC("server", all before)
//   client -> server  32 bytes: HMAC("client", all before)
//   server -> client  1 byte: accepted
// If both ends want TLS, its handshake follows, with the pair key as pre-shared key.
//
// The server proves itself first, so that a stranger who listens learns nothing that he could
// replay: both nonces are in every proof. Reads exactly these bytes and no more. Not thread-safe;
// owns the descriptor until Finish.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"
#include "comm/net/data_socket.h"
#include "comm/net/gate.h"
#include "comm/net/job_key.h"
#include "comm/net/tls_psk.h"

namespace dtrain::comm {

class DataHandshake final : public Handshake {
 public:
  // A client states its whole `peers`; a server knows epoch and self and learns the rest.
  static absl::StatusOr<std::unique_ptr<DataHandshake>> Create(UniqueFd fd, TlsRole role,
                                                               const JobKey& key,
                                                               const DataPeers& peers,
                                                               int world_size,
                                                               const DataSocketOptions& options);

  int fd() const override { return fd_.get(); }
  absl::StatusOr<IoWant> Advance() override;
  // REQUIRES: Advance gave kNothing. Takes the descriptor.
  std::unique_ptr<DataSocket> Finish();

 private:
  enum class Step { kHello, kServerProof, kClientProof, kAccepted };
  DataHandshake(UniqueFd fd, TlsRole role, const JobKey& key, const DataPeers& peers,
                int world_size, const DataSocketOptions& options);
  // Starts sending `bytes`, or waiting for `bytes` of them.
  void Send(absl::string_view bytes);
  void Expect(size_t bytes);
  absl::StatusOr<IoWant> Move();
  // The actions, for each role, after the bytes of `step_` have moved.
  absl::Status AfterAsServer();
  absl::Status AfterAsClient();
  absl::Status TakeHello();
  absl::Status TakeServerProof();
  std::string Proof(absl::string_view role) const;
  absl::Status WrongKey() const;
  // After the last byte: OK where no TLS is wanted.
  absl::StatusOr<IoWant> AdvanceTls();

  UniqueFd fd_;
  const TlsRole role_;
  const JobKey key_;
  DataPeers peers_;
  const int world_size_;
  DataSocketOptions options_;
  std::array<uint8_t, 32> nonce_{};

  std::optional<TlsSession> tls_;
  Step step_ = Step::kHello;
  bool sending_ = false;
  std::string buffer_;      // Being sent or received.
  size_t done_ = 0;         // Bytes of buffer_ that moved.
  SecretKey pair_key_;      // Known from the hello on.
  std::string transcript_;  // All bytes so far, both directions.
};

}  // namespace dtrain::comm
