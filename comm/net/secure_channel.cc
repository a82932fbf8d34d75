#include "comm/net/secure_channel.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/net/retry.h"

namespace dtrain::comm {
namespace {

absl::StatusOr<std::unique_ptr<SecureStream>> OpenStream(const Endpoint& server,
                                                         const std::shared_ptr<TlsContext>& context,
                                                         const Hello& hello, Deadline deadline) {
  DT_ASSIGN_OR_RETURN(UniqueFd fd, Connect(server, deadline));
  DT_ASSIGN_OR_RETURN(auto stream, SecureStream::Create(std::move(fd), context, hello));
  // A server that accepts and then stays silent must not use up the whole deadline.
  DT_RETURN_IF_ERROR(DriveHandshake(*stream, Earlier(deadline, HandshakeTry())));
  return stream;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SecureChannel>> SecureChannel::Connect(const Endpoint& server,
                                                                      const JobKey& key,
                                                                      const Hello& hello,
                                                                      Deadline deadline) {
  DT_ASSIGN_OR_RETURN(const auto context, TlsContext::Create(TlsRole::kClient, key));
  DT_ASSIGN_OR_RETURN(auto stream, RetryHandshake(server, deadline, [&] {
                        return OpenStream(server, context, hello, deadline);
                      }));
  return std::make_unique<SecureChannel>(std::move(stream));
}

SecureChannel::SecureChannel(std::unique_ptr<SecureStream> stream)
    : stream_(std::move(stream)),
      peer_hello_(stream_->peer_hello()),
      name_(stream_->name()),
      fd_(stream_->fd()) {}

SecureChannel::~SecureChannel() = default;

absl::Status SecureChannel::Send(uint32_t type, absl::string_view payload, Deadline deadline) {
  // Limits the bytes that earlier calls left unsent.
  constexpr size_t kQueuedBytesMax = 2 * size_t{kFramePayloadBytesMax};
  if (payload.size() > kFramePayloadBytesMax) {
    return absl::InvalidArgumentError(absl::StrFormat("a frame of %d bytes; allowed: at most %d",
                                                      payload.size(), kFramePayloadBytesMax));
  }
  std::unique_lock lock(mutex_);
  if (stream_->queued_bytes() > kQueuedBytesMax) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%s: %d bytes wait to be sent already; the peer does not read", name_,
                        stream_->queued_bytes()));
  }
  stream_->Queue(type, std::string(payload));
  const uint64_t ticket = stream_->frames_queued();
  while (true) {
    DT_RETURN_IF_ERROR(stream_->Flush().status());
    if (stream_->frames_flushed() >= ticket) {
      return absl::OkStatus();
    }
    lock.unlock();
    DT_RETURN_IF_ERROR(WaitWritable(fd_, deadline));
    lock.lock();
  }
}

absl::StatusOr<Frame> SecureChannel::Receive(Deadline deadline) {
  std::unique_lock lock(mutex_);
  while (true) {
    DT_ASSIGN_OR_RETURN(auto frame, stream_->TryReceive());
    if (frame.has_value()) {
      return *std::move(frame);
    }
    lock.unlock();
    DT_RETURN_IF_ERROR(WaitReadable(fd_, deadline));
    lock.lock();
  }
}

void SecureChannel::Close() { stream_->Shutdown(); }

absl::StatusOr<std::unique_ptr<SecureListener>> SecureListener::Create(
    const Endpoint& where, const JobKey& key, const SecureListenerOptions& options) {
  DT_ASSIGN_OR_RETURN(const auto context, TlsContext::Create(TlsRole::kServer, key));
  std::unique_ptr<SecureListener> listener(new SecureListener(options.ready_max));
  const Hello self{options.epoch, Hello::Role::kServer, -1, options.gate.name};
  DT_ASSIGN_OR_RETURN(
      listener->gate_,
      Gate::Create(
          where, options.listen, options.gate,
          [context, self](UniqueFd fd) -> absl::StatusOr<std::unique_ptr<Handshake>> {
            return SecureStream::Create(std::move(fd), context, self);
          },
          [raw = listener.get()](std::unique_ptr<Handshake> done) {
            raw->ready_.TryPush(
                std::unique_ptr<SecureStream>(static_cast<SecureStream*>(done.release())));
          }));
  return listener;
}

SecureListener::~SecureListener() { gate_.reset(); }

absl::StatusOr<std::unique_ptr<SecureChannel>> SecureListener::Accept(Deadline deadline) {
  auto stream = ready_.Pop(deadline);
  if (!stream.has_value()) {
    return absl::DeadlineExceededError(
        absl::StrCat("nobody connected to ", endpoint().ToString(), " in time"));
  }
  return std::make_unique<SecureChannel>(*std::move(stream));
}

}  // namespace dtrain::comm
