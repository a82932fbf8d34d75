// The messages between `dtrain launch` and the agents that it starts on other hosts: frames on the
// agent's stdin and stdout, and byte queues for descriptors that may be slow.
//
// A frame is the length of its payload (4 bytes, little-endian), its kind (1 byte) and the payload.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain::launcher {

enum class FrameKind : uint8_t {
  // From the starter to an agent.
  kJob = 1,     // A JobMessage (node_messages.h).
  kMeet = 2,    // host:port of node 0's coordinator: start the ranks.
  kSignal = 3,  // The number of a stop signal that the starter received.
  // From an agent to the starter.
  kHello = 4,    // A HelloMessage.
  kServing = 5,  // host:port at which node 0's coordinator listens.
  kOut = 6,      // Output of the agent and its ranks, to be shown on stdout.
  kErr = 7,      // The same for stderr.
  kEnd = 8,      // The exit code. Nothing follows.
  // Between the starter and a host that starts others for it (host_relay.h).
  kRelay = 9,     // To it, in place of kJob: the folder in which to work. It answers with kHello.
  kChannel = 10,  // Either way: a ChannelMessage (channel_message.h).
};

struct Frame {
  FrameKind kind = FrameKind::kEnd;
  std::string payload;
};

inline constexpr size_t kFrameBytesMax = 16U << 20;

// An agent writes it before its first frame. Shells of login accounts may print greetings before
// it, which the reader leaves out.
inline constexpr char kPreamble[] = "\ndtrain node-agent 1\n";

std::string EncodeFrame(FrameKind kind, absl::string_view payload);

class FrameReader {
 public:
  // Frames begin after the first `preamble` in the stream.
  explicit FrameReader(std::string preamble) : preamble_(std::move(preamble)) {}

  void Add(absl::string_view bytes) {
    bytes_.erase(0, done_);
    done_ = 0;
    bytes_.append(bytes.data(), bytes.size());
  }
  // Adds what `fd` has now, without waiting. False: its stream has ended.
  bool ReadFrom(int fd);
  // The next frame; nothing when more bytes are needed. InvalidArgument: an unknown kind, a length
  // beyond kFrameBytesMax, or no preamble in the first 64 KiB; it is given again at each call.
  absl::StatusOr<std::optional<Frame>> Next();

 private:
  std::string preamble_;  // Empty when it has been found.
  std::string bytes_;
  size_t done_ = 0;  // Bytes of bytes_ that were given.
};

// Bytes on their way to a descriptor that must not block its writer.
class ByteQueue {
 public:
  // `fd` stays the caller's.
  explicit ByteQueue(int fd) : fd_(fd) {}

  void Add(absl::string_view bytes);
  // Writes what the descriptor takes now. After an error, such as a closed pipe, everything that is
  // added is dropped.
  void Flush();
  // Flushes until the queue is empty, `timeout_ms` at most.
  void Finish(int timeout_ms);
  size_t size() const { return bytes_.size() - done_; }
  bool empty() const { return size() == 0; }
  bool broken() const { return broken_; }
  int fd() const { return fd_; }
  void Close();  // Drops the bytes; later ones too.

 private:
  int fd_;
  std::string bytes_;
  size_t done_ = 0;  // Bytes of bytes_ that are written.
  bool broken_ = false;
};

}  // namespace dtrain::launcher
