#include "comm/net/secure_stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status.h"
#include "comm/net/wire.h"

namespace dtrain::comm {
namespace {

constexpr uint32_t kProtocolVersion = 1;
constexpr size_t kHelloNameBytesMax = 255;
// Limit on a hello, and so on the memory that a peer can use before it is authenticated.
constexpr uint32_t kHelloPayloadBytesMax = 1024;
// Bodies below this are copied behind their head, so that a frame is one TLS record.
constexpr size_t kSharedBodyBytesMin = 4096;

const char* RoleName(Hello::Role role) {
  switch (role) {
    case Hello::Role::kRank:
      return "rank";
    case Hello::Role::kAgent:
      return "agent";
    case Hello::Role::kTool:
      return "tool";
    case Hello::Role::kServer:
      return "server";
  }
  return "?";
}

}  // namespace

std::string EncodeHello(const Hello& hello) {
  WireWriter writer;
  writer.U32(kProtocolVersion);
  writer.U8(static_cast<uint8_t>(hello.role));
  writer.U32(static_cast<uint32_t>(hello.id));
  writer.Bytes(absl::string_view(hello.name).substr(0, kHelloNameBytesMax));
  return writer.Take();
}

absl::StatusOr<Hello> DecodeHello(absl::string_view payload, uint64_t epoch) {
  WireReader reader(payload);
  const uint32_t version = reader.U32();
  const uint8_t role = reader.U8();
  Hello hello;
  hello.epoch = epoch;
  hello.id = static_cast<int32_t>(reader.U32());
  hello.name = std::string(reader.Bytes(kHelloNameBytesMax));
  if (!reader.Complete() || role > static_cast<uint8_t>(Hello::Role::kServer)) {
    return absl::InvalidArgumentError("malformed hello");
  }
  if (version != kProtocolVersion) {
    return absl::FailedPreconditionError(
        absl::StrFormat("the peer speaks version %d of the control protocol, this end %d; use the "
                        "same dtrain on all nodes",
                        version, kProtocolVersion));
  }
  hello.role = static_cast<Hello::Role>(role);
  return hello;
}

absl::StatusOr<std::unique_ptr<SecureStream>> SecureStream::Create(
    UniqueFd fd, const std::shared_ptr<TlsContext>& context, const Hello& self,
    uint32_t payload_bytes_max) {
  DT_ASSIGN_OR_RETURN(TlsSession tls, context->NewSession(fd.get()));
  return std::unique_ptr<SecureStream>(
      new SecureStream(std::move(fd), std::move(tls), context->role(), self, payload_bytes_max));
}

SecureStream::SecureStream(UniqueFd fd, TlsSession tls, TlsRole role, const Hello& self,
                           uint32_t payload_bytes_max)
    : fd_(std::move(fd)),
      tls_(std::move(tls)),
      role_(role),
      self_(self),
      name_(ConnectionName(fd_.get())),
      reader_(kHelloPayloadBytesMax),
      payload_bytes_max_(payload_bytes_max) {}

SecureStream::~SecureStream() {
  if (state_ == State::kOpen) {
    tls_.CloseNotify();
  }
}

absl::Status SecureStream::Named(const absl::Status& status) const {
  return Annotate(status, name_);
}

absl::StatusOr<IoWant> SecureStream::Advance() {
  const bool server = role_ == TlsRole::kServer;
  while (true) {
    switch (state_) {
      case State::kTls: {
        auto want = tls_.Handshake();
        if (!want.ok()) {
          return Named(want.status());
        }
        if (*want != IoWant::kNothing) {
          return *want;
        }
        if (!server) {
          Queue(kFrameHello, EncodeHello(self_));
        }
        state_ = server ? State::kReceiveHello : State::kSend;
        break;
      }
      case State::kSend: {
        DT_ASSIGN_OR_RETURN(const bool sent, Flush());
        if (!sent) {
          return IoWant::kWrite;
        }
        if (!refusal_.ok()) {
          return refusal_;
        }
        state_ = server ? State::kOpen : State::kReceiveHello;
        break;
      }
      case State::kReceiveHello: {
        DT_ASSIGN_OR_RETURN(const auto frame, TryReceive());
        if (!frame.has_value()) {
          return IoWant::kRead;
        }
        DT_RETURN_IF_ERROR(Named(server ? TakeHello(*frame) : TakeAnswer(*frame)));
        reader_.SetPayloadMax(payload_bytes_max_);
        state_ = server ? State::kSend : State::kOpen;
        break;
      }
      case State::kOpen:
        reader_.RequireEpoch(self_.epoch);
        return IoWant::kNothing;
    }
  }
}

absl::Status SecureStream::TakeHello(const Frame& frame) {
  if (frame.type != kFrameHello) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the first frame has type %d; expected a hello", frame.type));
  }
  DT_ASSIGN_OR_RETURN(peer_hello_, DecodeHello(frame.payload, frame.epoch));
  if (peer_hello_.epoch == self_.epoch) {
    Queue(kFrameWelcome, EncodeHello(self_));
    return absl::OkStatus();
  }
  refusal_ = absl::AbortedError(absl::StrFormat(
      "the job is at epoch %d, but %s %d (%s) is of epoch %d: it must stop", self_.epoch,
      RoleName(peer_hello_.role), peer_hello_.id, peer_hello_.name, peer_hello_.epoch));
  Queue(kFrameStop, std::string(refusal_.message()));
  return absl::OkStatus();
}

absl::Status SecureStream::TakeAnswer(const Frame& frame) {
  if (frame.type == kFrameStop) {
    return absl::AbortedError(absl::StrCat("the server refused: ", frame.payload));
  }
  if (frame.type != kFrameWelcome) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the server's first frame has type %d", frame.type));
  }
  DT_ASSIGN_OR_RETURN(peer_hello_, DecodeHello(frame.payload, frame.epoch));
  if (frame.epoch != self_.epoch) {
    return absl::AbortedError(
        absl::StrFormat("the server is at epoch %d, this process at %d", frame.epoch, self_.epoch));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Frame>> SecureStream::TryReceive() {
  while (true) {
    const absl::Span<uint8_t> space = reader_.Space();
    auto got = tls_.Read(space.data(), space.size());
    if (!got.ok()) {
      return Named(got.status());
    }
    if (got->bytes == 0) {
      return std::nullopt;
    }
    auto frame = reader_.Commit(got->bytes);
    if (!frame.ok()) {
      return Named(frame.status());
    }
    if (frame->has_value()) {
      return frame;
    }
  }
}

void SecureStream::Queue(uint32_t type, const std::string& head,
                         std::shared_ptr<const std::string> body) {
  const size_t body_bytes = body == nullptr ? 0 : body->size();
  DT_CHECK_LE(head.size() + body_bytes, kFramePayloadBytesMax) << " a frame's payload";
  const auto header = EncodeFrameHeader(
      {static_cast<uint32_t>(head.size() + body_bytes), type, send_sequence_++, self_.epoch});
  Output output;
  output.bytes.reserve(header.size() + head.size() +
                       (body_bytes < kSharedBodyBytesMin ? body_bytes : 0));
  output.bytes.append(reinterpret_cast<const char*>(header.data()), header.size());
  output.bytes.append(head);
  if (body_bytes > 0 && body_bytes < kSharedBodyBytesMin) {
    output.bytes.append(*body);
  } else if (body_bytes > 0) {
    output.body = std::move(body);
  }
  queued_bytes_ += header.size() + head.size() + body_bytes;
  output_.push_back(std::move(output));
}

absl::StatusOr<bool> SecureStream::Flush() {
  while (!output_.empty()) {
    const Output& first = output_.front();
    const std::string& piece =
        output_offset_ < first.bytes.size() || first.body == nullptr ? first.bytes : *first.body;
    const size_t start =
        &piece == &first.bytes ? output_offset_ : output_offset_ - first.bytes.size();
    auto put = tls_.Write(piece.data() + start, piece.size() - start);
    if (!put.ok()) {
      return Named(put.status());
    }
    if (put->bytes == 0) {
      return false;
    }
    output_offset_ += put->bytes;
    queued_bytes_ -= put->bytes;
    if (output_offset_ == first.bytes.size() + (first.body ? first.body->size() : 0)) {
      output_.pop_front();
      output_offset_ = 0;
      ++frames_flushed_;
    }
  }
  return true;
}

void SecureStream::Shutdown() { ::shutdown(fd_.get(), SHUT_RDWR); }

}  // namespace dtrain::comm
