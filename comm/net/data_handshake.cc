#include "comm/net/data_handshake.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "comm/net/wire.h"

namespace dtrain::comm {
namespace {

constexpr uint32_t kMagic = 0x31445444;  // "DTD1".
constexpr uint32_t kVersion = 1;
constexpr size_t kNonceBytes = 32;
constexpr size_t kProofBytes = 32;
constexpr size_t kHelloBytes = 36 + kNonceBytes;
constexpr size_t kServerProofBytes = kNonceBytes + 8 + kProofBytes;
constexpr uint32_t kChunkBytesMin = 4U << 10;
constexpr uint32_t kChunkBytesMax = 4U << 20;

absl::Span<const uint8_t> AsBytes(absl::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}
absl::string_view AsText(absl::Span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

constexpr uint32_t kCrcFlag = 1;
constexpr uint32_t kTlsFlag = 2;
uint32_t FlagsOf(const DataSocketOptions& options) {
  return (options.crc ? kCrcFlag : 0) | (options.tls ? kTlsFlag : 0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataHandshake>> DataHandshake::Create(
    UniqueFd fd, TlsRole role, const JobKey& key, const DataPeers& peers, int world_size,
    const DataSocketOptions& options) {
  std::unique_ptr<DataHandshake> handshake(
      new DataHandshake(std::move(fd), role, key, peers, world_size, options));
  DT_RETURN_IF_ERROR(RandomBytes(absl::MakeSpan(handshake->nonce_)));
  if (role == TlsRole::kServer) {
    handshake->Expect(kHelloBytes);
    return handshake;
  }
  handshake->pair_key_ = key.PairKey(peers.epoch, peers.self, peers.peer);
  WireWriter hello;
  hello.U32(kMagic);
  hello.U32(kVersion);
  hello.U64(peers.epoch);
  hello.U32(static_cast<uint32_t>(peers.self));
  hello.U32(static_cast<uint32_t>(peers.peer));
  hello.U32(static_cast<uint32_t>(peers.channel));
  hello.U32(FlagsOf(handshake->options_));
  hello.U32(handshake->options_.chunk_bytes);
  handshake->Send(absl::StrCat(hello.Take(), AsText(handshake->nonce_)));
  return handshake;
}

DataHandshake::DataHandshake(UniqueFd fd, TlsRole role, const JobKey& key, const DataPeers& peers,
                             int world_size, const DataSocketOptions& options)
    : fd_(std::move(fd)),
      role_(role),
      key_(key),
      peers_(peers),
      world_size_(world_size),
      options_(options) {
  options_.chunk_bytes = std::clamp(options_.chunk_bytes, kChunkBytesMin, kChunkBytesMax);
  options_.crc = options_.crc && !options_.tls;
}

void DataHandshake::Send(absl::string_view bytes) {
  sending_ = true;
  buffer_ = std::string(bytes);
  done_ = 0;
}

void DataHandshake::Expect(size_t bytes) {
  sending_ = false;
  buffer_.assign(bytes, '\0');
  done_ = 0;
}

absl::StatusOr<IoWant> DataHandshake::Advance() {
  while (step_ != Step::kAccepted || done_ < buffer_.size()) {
    DT_ASSIGN_OR_RETURN(const IoWant want, Move());
    if (want != IoWant::kNothing) {
      return want;
    }
    if (step_ == Step::kAccepted) {
      break;
    }
    DT_RETURN_IF_ERROR(role_ == TlsRole::kServer ? AfterAsServer() : AfterAsClient());
  }
  return options_.tls ? AdvanceTls() : IoWant::kNothing;
}

absl::StatusOr<IoWant> DataHandshake::AdvanceTls() {
  if (!tls_.has_value()) {
    DT_ASSIGN_OR_RETURN(const JobKey pair, JobKey::FromBytes(pair_key_.bytes()));
    DT_ASSIGN_OR_RETURN(const auto context, TlsContext::Create(role_, pair));
    DT_ASSIGN_OR_RETURN(tls_, context->NewSession(fd_.get()));
  }
  return tls_->Handshake();
}

absl::StatusOr<IoWant> DataHandshake::Move() {
  while (done_ < buffer_.size()) {
    char* const data = buffer_.data() + done_;
    const size_t bytes = buffer_.size() - done_;
    const ssize_t moved = sending_ ? ::send(fd_.get(), data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT)
                                   : ::recv(fd_.get(), data, bytes, MSG_DONTWAIT);
    if (moved > 0) {
      done_ += static_cast<size_t>(moved);
    } else if (moved == 0 || (errno != EAGAIN && errno != EINTR)) {
      return absl::UnavailableError(absl::StrFormat(
          "%s: the peer ended the handshake of a data connection%s", ConnectionName(fd_.get()),
          moved == 0 ? "" : absl::StrCat(": ", std::strerror(errno))));
    } else if (errno == EAGAIN) {
      return sending_ ? IoWant::kWrite : IoWant::kRead;
    }
  }
  return IoWant::kNothing;
}

absl::Status DataHandshake::AfterAsServer() {
  switch (step_) {
    case Step::kHello: {
      DT_RETURN_IF_ERROR(TakeHello());
      transcript_ = buffer_;
      WireWriter choice;
      choice.U32(FlagsOf(options_));
      choice.U32(options_.chunk_bytes);
      absl::StrAppend(&transcript_, AsText(nonce_), choice.Take());
      const std::string proof = Proof("server");
      Send(absl::StrCat(absl::string_view(transcript_).substr(kHelloBytes), proof));
      transcript_ += proof;
      step_ = Step::kServerProof;
      break;
    }
    case Step::kServerProof:
      Expect(kProofBytes);
      step_ = Step::kClientProof;
      break;
    case Step::kClientProof:
      if (!ConstantTimeEqual(AsBytes(buffer_), AsBytes(Proof("client")))) {
        return WrongKey();
      }
      Send(absl::string_view("\1", 1));
      step_ = Step::kAccepted;
      break;
    case Step::kAccepted:
      break;
  }
  return absl::OkStatus();
}

absl::Status DataHandshake::AfterAsClient() {
  switch (step_) {
    case Step::kHello:
      transcript_ = buffer_;
      Expect(kServerProofBytes);
      step_ = Step::kServerProof;
      break;
    case Step::kServerProof: {
      DT_RETURN_IF_ERROR(TakeServerProof());
      Send(Proof("client"));
      step_ = Step::kClientProof;
      break;
    }
    case Step::kClientProof:
      Expect(1);
      step_ = Step::kAccepted;
      break;
    case Step::kAccepted:
      break;
  }
  return absl::OkStatus();
}

absl::Status DataHandshake::TakeHello() {
  WireReader reader(buffer_);
  const uint32_t magic = reader.U32();
  const uint32_t version = reader.U32();
  (void)reader.U64();  // The client's epoch; the key depends on this end's epoch alone.
  const uint32_t from = reader.U32();
  // The rank that the client wants to reach; for another rank the key would differ.
  (void)reader.U32();
  const uint32_t channel = reader.U32();
  // The client's flags, which the client compares itself once the server has proved its key.
  (void)reader.U32();
  const uint32_t chunk_bytes = reader.U32();
  if (magic != kMagic || version != kVersion || from >= static_cast<uint32_t>(world_size_) ||
      from == static_cast<uint32_t>(peers_.self) || channel > (1U << 20)) {
    return absl::InvalidArgumentError("no dtrain data connection of this job");
  }
  peers_.peer = static_cast<int>(from);
  peers_.channel = static_cast<int>(channel);
  options_.chunk_bytes =
      std::clamp(std::min(options_.chunk_bytes, chunk_bytes), kChunkBytesMin, kChunkBytesMax);
  pair_key_ = key_.PairKey(peers_.epoch, peers_.self, peers_.peer);
  return absl::OkStatus();
}

absl::Status DataHandshake::TakeServerProof() {
  const absl::string_view answer = buffer_;
  const absl::string_view proof = answer.substr(answer.size() - kProofBytes);
  absl::StrAppend(&transcript_, answer.substr(0, answer.size() - kProofBytes));
  if (!ConstantTimeEqual(AsBytes(proof), AsBytes(Proof("server")))) {
    return WrongKey();
  }
  absl::StrAppend(&transcript_, proof);
  WireReader reader(answer.substr(kNonceBytes));
  const uint32_t flags = reader.U32();
  const uint32_t chunk_bytes = reader.U32();
  const bool tls = (flags & kTlsFlag) != 0;
  const bool crc = (flags & kCrcFlag) != 0;
  if (tls != options_.tls) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "rank %d sends its data through TLS and rank %d does not: set it alike on all ranks",
        tls ? peers_.peer : peers_.self, tls ? peers_.self : peers_.peer));
  }
  if (crc != options_.crc) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "rank %d sums its data chunks (CRC32C) and rank %d does not: set it alike on all ranks",
        crc ? peers_.peer : peers_.self, crc ? peers_.self : peers_.peer));
  }
  options_.chunk_bytes = std::clamp(chunk_bytes, kChunkBytesMin, kChunkBytesMax);
  return absl::OkStatus();
}

std::string DataHandshake::Proof(absl::string_view role) const {
  const auto mac = HmacSha256(
      pair_key_, {AsBytes("dtrain data "), AsBytes(role), AsBytes(" "), AsBytes(transcript_)});
  return std::string(AsText(mac));
}

absl::Status DataHandshake::WrongKey() const {
  return absl::PermissionDeniedError(absl::StrFormat(
      "data connection %s: the peer has no key for ranks %d and %d at epoch %d; it belongs to "
      "another job, epoch or rank",
      ConnectionName(fd_.get()), peers_.self, peers_.peer, peers_.epoch));
}

std::unique_ptr<DataSocket> DataHandshake::Finish() {
  return std::unique_ptr<DataSocket>(
      new DataSocket(std::move(fd_), peers_, options_, std::move(tls_)));
}

}  // namespace dtrain::comm
