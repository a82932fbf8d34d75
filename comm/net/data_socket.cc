#include "comm/net/data_socket.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/status.h"
#include "comm/net/data_handshake.h"
#include "comm/net/retry.h"

namespace dtrain::comm {
namespace {

constexpr size_t kHeaderBytes = 16;

std::string DescribeEnds(int fd, const DataPeers& peers) {
  return absl::StrFormat("rank %d (%s) and rank %d (%s)", peers.self, LocalEndpoint(fd).ToString(),
                         peers.peer, PeerEndpoint(fd).ToString());
}

absl::StatusOr<std::unique_ptr<DataSocket>> TryConnect(const Endpoint& where, const JobKey& key,
                                                       const DataPeers& peers,
                                                       const DataSocketOptions& options,
                                                       Deadline deadline) {
  DT_ASSIGN_OR_RETURN(UniqueFd fd,
                      Connect(where, deadline, {.user_timeout = options.user_timeout}));
  DT_ASSIGN_OR_RETURN(const auto handshake,
                      DataHandshake::Create(std::move(fd), TlsRole::kClient, key, peers,
                                            /*world_size=*/0, options));
  DT_RETURN_IF_ERROR(DriveHandshake(*handshake, Earlier(deadline, HandshakeTry())));
  return handshake->Finish();
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataSocket>> DataSocket::Connect(const Endpoint& where,
                                                                const JobKey& key,
                                                                const DataPeers& peers,
                                                                const DataSocketOptions& options,
                                                                Deadline deadline) {
  auto socket = RetryHandshake(where, deadline,
                               [&] { return TryConnect(where, key, peers, options, deadline); });
  if (!socket.ok()) {
    return Annotate(socket.status(), absl::StrFormat("rank %d to rank %d", peers.self, peers.peer));
  }
  return socket;
}

DataSocket::DataSocket(UniqueFd fd, const DataPeers& peers, const DataSocketOptions& options,
                       std::optional<TlsSession> tls)
    : fd_(std::move(fd)),
      peers_(peers),
      options_(options),
      name_(DescribeEnds(fd_.get(), peers)),
      tls_(std::move(tls)) {
  static_assert(sizeof(ChunkHeader) == kHeaderBytes);
}

absl::Status DataSocket::Send(absl::Span<const std::byte> message, Deadline deadline) {
  while (true) {
    DT_ASSIGN_OR_RETURN(const bool done, TrySend(message));
    if (done) {
      return absl::OkStatus();
    }
    if (const absl::Status waited = WaitWritable(fd_.get(), deadline); !waited.ok()) {
      return absl::Status(waited.code(),
                          absl::StrFormat("rank %d took %d of %d bytes in time (%s)", peers_.peer,
                                          sent_, message.size(), name_));
    }
  }
}

absl::Status DataSocket::Receive(absl::Span<std::byte> message, Deadline deadline) {
  while (true) {
    DT_ASSIGN_OR_RETURN(const bool done, TryReceive(message));
    if (done) {
      return absl::OkStatus();
    }
    if (const absl::Status waited = WaitReadable(fd_.get(), deadline); !waited.ok()) {
      return absl::Status(waited.code(),
                          absl::StrFormat("rank %d sent %d of %d bytes in time (%s)", peers_.peer,
                                          received_ + receive_chunk_done_, message.size(), name_));
    }
  }
}

void DataSocket::BeginChunk(absl::Span<const std::byte> message) {
  const auto chunk = message.subspan(sent_, options_.chunk_bytes);
  send_header_.bytes = static_cast<uint32_t>(chunk.size());
  send_header_.sequence = send_sequence_++;
  send_header_.crc = options_.crc ? Crc32c(chunk.data(), chunk.size()) : 0;
  send_header_.header_crc = Crc32c(&send_header_, kHeaderBytes - sizeof(uint32_t));
  send_header_done_ = 0;
  send_chunk_end_ = sent_ + chunk.size();
}

absl::StatusOr<bool> DataSocket::TrySend(absl::Span<const std::byte> message) {
  while (sent_ < message.size()) {
    if (sent_ == send_chunk_end_) {
      BeginChunk(message);
    }
    DT_CHECK_LE(send_chunk_end_, message.size()) << " TrySend was called with another message";
    DT_ASSIGN_OR_RETURN(const size_t moved, Put(message.subspan(sent_, send_chunk_end_ - sent_)));
    if (moved == 0) {
      return false;
    }
    const size_t of_header = std::min(moved, kHeaderBytes - send_header_done_);
    send_header_done_ += of_header;
    sent_ += moved - of_header;
  }
  sent_ = 0;
  send_chunk_end_ = 0;
  return true;
}

absl::StatusOr<size_t> DataSocket::Put(absl::Span<const std::byte> payload) {
  char* const header = reinterpret_cast<char*>(&send_header_) + send_header_done_;
  const size_t header_left = kHeaderBytes - send_header_done_;
  if (tls_.has_value()) {
    const std::lock_guard lock(tls_mutex_);
    const auto put = header_left > 0 ? tls_->Write(header, header_left)
                                     : tls_->Write(payload.data(), payload.size());
    return put.ok() ? absl::StatusOr<size_t>(put->bytes) : Broken("send to", put.status());
  }
  std::array<iovec, 2> pieces = {iovec{header, header_left},
                                 iovec{const_cast<std::byte*>(payload.data()), payload.size()}};
  msghdr request{};
  request.msg_iov = pieces.data();
  request.msg_iovlen = pieces.size();
  while (true) {
    const ssize_t put = ::sendmsg(fd_.get(), &request, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put >= 0) {
      return static_cast<size_t>(put);
    }
    if (errno == EAGAIN) {
      return size_t{0};
    }
    if (errno != EINTR) {
      return Broken("send to", BrokenConnection(errno));
    }
  }
}

absl::StatusOr<size_t> DataSocket::Get(absl::Span<std::byte> payload) {
  char* const header = reinterpret_cast<char*>(&receive_header_) + receive_header_done_;
  const size_t header_left = kHeaderBytes - receive_header_done_;
  if (tls_.has_value()) {
    const std::lock_guard lock(tls_mutex_);
    const auto got = header_left > 0 ? tls_->Read(header, header_left)
                                     : tls_->Read(payload.data(), payload.size());
    return got.ok() ? absl::StatusOr<size_t>(got->bytes) : Broken("receive from", got.status());
  }
  std::array<iovec, 2> pieces = {iovec{header, header_left}, iovec{payload.data(), payload.size()}};
  msghdr request{};
  request.msg_iov = pieces.data();
  request.msg_iovlen = pieces.size();
  while (true) {
    const ssize_t got = ::recvmsg(fd_.get(), &request, MSG_DONTWAIT);
    if (got > 0) {
      return static_cast<size_t>(got);
    }
    if (got == 0) {
      return Broken("receive from", absl::UnavailableError("it closed the connection"));
    }
    if (errno == EAGAIN) {
      return size_t{0};
    }
    if (errno != EINTR) {
      return Broken("receive from", BrokenConnection(errno));
    }
  }
}

absl::StatusOr<bool> DataSocket::TryReceive(absl::Span<std::byte> message) {
  while (received_ < message.size()) {
    // Both ends cut a message alike, so the payload can be read with its header in one call.
    const auto chunk = message.subspan(received_, options_.chunk_bytes);
    DT_ASSIGN_OR_RETURN(const size_t moved, Get(chunk.subspan(receive_chunk_done_)));
    if (moved == 0) {
      return false;
    }
    const size_t of_header = std::min(moved, kHeaderBytes - receive_header_done_);
    receive_header_done_ += of_header;
    receive_chunk_done_ += moved - of_header;
    if (of_header > 0 && receive_header_done_ == kHeaderBytes) {
      DT_RETURN_IF_ERROR(CheckHeader(chunk.size()));
    }
    if (receive_header_done_ == kHeaderBytes && receive_chunk_done_ == chunk.size()) {
      DT_RETURN_IF_ERROR(CheckPayload(chunk));
      received_ += chunk.size();
      receive_chunk_done_ = 0;
      receive_header_done_ = 0;
      ++receive_sequence_;
    }
  }
  received_ = 0;
  return true;
}

absl::Status DataSocket::CheckHeader(size_t expected_bytes) const {
  const uint32_t crc = Crc32c(&receive_header_, kHeaderBytes - sizeof(uint32_t));
  if (crc != receive_header_.header_crc || receive_header_.sequence != receive_sequence_) {
    return absl::DataLossError(absl::StrFormat(
        "the header of chunk %d from rank %d was altered on the way between %s; check the NICs, "
        "cables and memory of both hosts",
        receive_sequence_, peers_.peer, name_));
  }
  if (receive_header_.bytes != expected_bytes) {
    return absl::InternalError(absl::StrFormat(
        "rank %d sends a chunk of %d bytes where rank %d expects %d (%s): the ranks are in "
        "different calls, or in one call with different sizes",
        peers_.peer, receive_header_.bytes, peers_.self, expected_bytes, name_));
  }
  return absl::OkStatus();
}

absl::Status DataSocket::CheckPayload(absl::Span<const std::byte> chunk) const {
  if (!options_.crc) {
    return absl::OkStatus();
  }
  const uint32_t crc = Crc32c(chunk.data(), chunk.size());
  if (crc != receive_header_.crc) {
    return absl::DataLossError(absl::StrFormat(
        "chunk %d (%d bytes) from rank %d was altered on the way between %s: CRC32C %08x, sent "
        "%08x; check the NICs, cables and memory of both hosts",
        receive_sequence_, chunk.size(), peers_.peer, name_, crc, receive_header_.crc));
  }
  return absl::OkStatus();
}

absl::Status DataSocket::Broken(absl::string_view what, const absl::Status& why) const {
  return Annotate(why, absl::StrFormat("cannot %s rank %d (%s)", what, peers_.peer, name_));
}

void DataSocket::Shutdown() { ::shutdown(fd_.get(), SHUT_RDWR); }

}  // namespace dtrain::comm
