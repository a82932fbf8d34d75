// One connection as StreamTransport uses it: whole messages, without blocking.
//
// One thread may send while another receives.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "comm/net/data_socket.h"

namespace dtrain::comm {

class Channel {
 public:
  virtual ~Channel() = default;
  // Makes progress without waiting; true when the message is complete. Until then call again with
  // the same span, e.g. when poll(2) reports fd() ready. Unavailable: the peer is gone.
  virtual absl::StatusOr<bool> TrySend(absl::Span<const std::byte> message) = 0;
  virtual absl::StatusOr<bool> TryReceive(absl::Span<std::byte> message) = 0;
  // Makes both ends fail with Unavailable. Any thread; never blocks.
  virtual void Shutdown() = 0;
  virtual int fd() const = 0;
};

// A connected, non-blocking stream socket of a trusted peer (Unix); not owned.
class PlainChannel final : public Channel {
 public:
  explicit PlainChannel(int fd) : fd_(fd) {}
  absl::StatusOr<bool> TrySend(absl::Span<const std::byte> message) override;
  absl::StatusOr<bool> TryReceive(absl::Span<std::byte> message) override;
  void Shutdown() override;
  int fd() const override { return fd_; }

 private:
  const int fd_;
  size_t sent_ = 0;
  size_t received_ = 0;
};

// An authenticated TCP connection.
class DataChannel final : public Channel {
 public:
  explicit DataChannel(std::unique_ptr<DataSocket> socket) : socket_(std::move(socket)) {}
  absl::StatusOr<bool> TrySend(absl::Span<const std::byte> message) override {
    return socket_->TrySend(message);
  }
  absl::StatusOr<bool> TryReceive(absl::Span<std::byte> message) override {
    return socket_->TryReceive(message);
  }
  void Shutdown() override { socket_->Shutdown(); }
  int fd() const override { return socket_->fd(); }

 private:
  const std::unique_ptr<DataSocket> socket_;
};

}  // namespace dtrain::comm
