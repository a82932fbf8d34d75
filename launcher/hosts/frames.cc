#include "launcher/hosts/frames.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "absl/strings/str_format.h"
#include "base/deadline.h"

namespace dtrain::launcher {
namespace {

constexpr size_t kHeaderBytes = 5;
constexpr size_t kGreetingsMax = 64U << 10;
// A pipe that poll calls writable takes this many bytes without blocking (PIPE_BUF).
constexpr size_t kChunk = 4096;

}  // namespace

std::string EncodeFrame(FrameKind kind, absl::string_view payload) {
  std::string frame;
  frame.reserve(kHeaderBytes + payload.size());
  for (int shift = 0; shift < 32; shift += 8) {
    frame.push_back(static_cast<char>((payload.size() >> shift) & 0xff));
  }
  frame.push_back(static_cast<char>(kind));
  frame.append(payload.data(), payload.size());
  return frame;
}

bool FrameReader::ReadFrom(int fd) {
  pollfd entry{fd, POLLIN, 0};
  if (poll(&entry, 1, 0) <= 0) {
    return true;
  }
  std::array<char, 65536> chunk{};
  const ssize_t n = read(fd, chunk.data(), chunk.size());
  if (n > 0) {
    Add(absl::string_view(chunk.data(), static_cast<size_t>(n)));
  }
  return n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN));
}

absl::StatusOr<std::optional<Frame>> FrameReader::Next() {
  if (!preamble_.empty()) {
    const size_t at = bytes_.find(preamble_);
    if (at == std::string::npos) {
      if (bytes_.size() > kGreetingsMax) {
        return absl::InvalidArgumentError(
            "the shell of the host prints without end before dtrain starts");
      }
      return std::nullopt;
    }
    done_ = at + preamble_.size();
    preamble_.clear();
  }
  const absl::string_view left = absl::string_view(bytes_).substr(done_);
  if (left.size() < kHeaderBytes) {
    return std::nullopt;
  }
  size_t length = 0;
  for (size_t i = 0; i < 4; ++i) {
    length |= static_cast<size_t>(static_cast<unsigned char>(left[i])) << (8 * i);
  }
  const auto kind = static_cast<FrameKind>(left[4]);
  if (length > kFrameBytesMax || kind < FrameKind::kJob || kind > FrameKind::kChannel) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a message of kind %d with %d bytes; allowed: kinds 1 to 10, %d bytes",
                        static_cast<int>(kind), length, kFrameBytesMax));
  }
  if (left.size() < kHeaderBytes + length) {
    return std::nullopt;
  }
  done_ += kHeaderBytes + length;
  return Frame{kind, std::string(left.substr(kHeaderBytes, length))};
}

void ByteQueue::Add(absl::string_view bytes) {
  if (!broken_) {
    bytes_.append(bytes.data(), bytes.size());
  }
}

void ByteQueue::Flush() {
  while (!empty()) {
    pollfd entry{fd_, POLLOUT, 0};
    if (poll(&entry, 1, 0) <= 0) {
      break;
    }
    const ssize_t n = write(fd_, bytes_.data() + done_, std::min(kChunk, size()));
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
      break;
    }
    if (n < 0) {
      Close();
      return;
    }
    done_ += static_cast<size_t>(n);
  }
  bytes_.erase(0, done_);
  done_ = 0;
}

void ByteQueue::Finish(int timeout_ms) {
  const Deadline deadline = Deadline::After(absl::Milliseconds(timeout_ms));
  for (Flush(); !empty() && !deadline.Expired(); Flush()) {
    pollfd entry{fd_, POLLOUT, 0};
    poll(&entry, 1, deadline.PollTimeoutMs());
  }
}

void ByteQueue::Close() {
  broken_ = true;
  bytes_.clear();
  done_ = 0;
}

}  // namespace dtrain::launcher
