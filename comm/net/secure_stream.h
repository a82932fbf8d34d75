// The non-blocking core of a control connection: TLS, hello, frames in, frames out.
//
// Not thread-safe; SecureChannel adds locks and waiting, StoreServer drives many from one loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"
#include "comm/net/frame.h"
#include "comm/net/gate.h"
#include "comm/net/tls_psk.h"

namespace dtrain::comm {

// The first frame of each end: who it is.
struct Hello {
  enum class Role : uint8_t { kRank = 0, kAgent = 1, kTool = 2, kServer = 3 };
  uint64_t epoch = 0;
  Role role = Role::kRank;
  int32_t id = -1;     // Rank or node number; -1: none.
  std::string name{};  // Shown in messages; at most 255 bytes.
};
std::string EncodeHello(const Hello& hello);
absl::StatusOr<Hello> DecodeHello(absl::string_view payload, uint64_t epoch);

// Frame types of the hello exchange. Users take types from 16 up (store_protocol.h).
inline constexpr uint32_t kFrameHello = 1;
inline constexpr uint32_t kFrameWelcome = 2;
inline constexpr uint32_t kFrameStop = 3;  // Wrong epoch: the payload says why.

class SecureStream final : public Handshake {
 public:
  // `fd` is connected. A client sends `self` first; a server sends it as its answer.
  static absl::StatusOr<std::unique_ptr<SecureStream>> Create(
      UniqueFd fd, const std::shared_ptr<TlsContext>& context, const Hello& self,
      uint32_t payload_bytes_max = kFramePayloadBytesMax);
  ~SecureStream() override;

  int fd() const override { return fd_.get(); }
  // Goes on with the TLS handshake and the hellos; kNothing: the stream is open.
  absl::StatusOr<IoWant> Advance() override;

  // A whole frame, or nothing when no more bytes are there now. Unavailable: the peer is gone.
  absl::StatusOr<std::optional<Frame>> TryReceive();
  // Adds a frame to the output: `head`, then `body` (shared, not copied when large).
  void Queue(uint32_t type, const std::string& head,
             std::shared_ptr<const std::string> body = nullptr);
  // Writes as much as the socket takes; true when nothing is left.
  absl::StatusOr<bool> Flush();
  size_t queued_bytes() const { return queued_bytes_; }
  // Bytes that this stream keeps in memory for its peer.
  size_t buffered_bytes() const { return queued_bytes_ + reader_.buffered_bytes(); }
  uint64_t frames_queued() const { return send_sequence_; }
  uint64_t frames_flushed() const { return frames_flushed_; }
  // Ends both directions at once, for every holder of the descriptor.
  void Shutdown();

  const Hello& peer_hello() const { return peer_hello_; }
  const std::string& name() const { return name_; }

 private:
  enum class State { kTls, kSend, kReceiveHello, kOpen };
  struct Output {
    std::string bytes;
    std::shared_ptr<const std::string> body;
  };
  SecureStream(UniqueFd fd, TlsSession tls, TlsRole role, const Hello& self,
               uint32_t payload_bytes_max);
  absl::Status TakeHello(const Frame& frame);   // Server only.
  absl::Status TakeAnswer(const Frame& frame);  // Client only.
  absl::Status Named(const absl::Status& status) const;

  UniqueFd fd_;
  TlsSession tls_;
  const TlsRole role_;
  const Hello self_;
  Hello peer_hello_;
  State state_ = State::kTls;
  absl::Status refusal_;
  std::string name_;
  FrameReader reader_;
  const uint32_t payload_bytes_max_;
  std::deque<Output> output_;
  size_t output_offset_ = 0;  // Into the first entry.
  size_t queued_bytes_ = 0;
  uint64_t send_sequence_ = 0;
  uint64_t frames_flushed_ = 0;
};

}  // namespace dtrain::comm
