// Rank -> agent messages over the node's Unix socket (DTRAIN_AGENT_SOCKET), one datagram each.
//
// The rank's side never blocks and never fails a step: when the agent is slow or gone, messages are
// dropped and counted. The agent's side (launcher/) decodes with AgentMessage::Parse.
// AgentChannel is thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"

namespace dtrain {

struct AgentMessage {
  enum class Kind {
    kHello,  // The rank has started: pid and run directory.
    kBeat,   // Progress: step, phase, collective sequence number.
    kError,  // First-hand error of this rank, before it ends: text and exit code.
    kDone,   // The program returned: exit code.
  };
  Kind kind = Kind::kBeat;
  int rank = 0;
  int pid = 0;
  int64_t step = 0;
  uint64_t collective = 0;  // Collectives started so far.
  int exit_code = 0;
  std::string phase =
      {};  // "start", "data", "forward", "backward", "reduce", "update", "save", "eval".
  std::string text = {};  // kHello: run directory; kError: the message.

  std::string Encode() const;  // One line of JSON.
  static absl::StatusOr<AgentMessage> Parse(absl::string_view line);
};

class AgentChannel {
 public:
  // Connects to the agent at `socket_path`.
  static absl::StatusOr<AgentChannel> Connect(const std::string& socket_path);
  // A channel without an agent: Send does nothing.
  AgentChannel() = default;
  AgentChannel(AgentChannel&& other) noexcept
      : fd_(std::move(other.fd_)), dropped_(other.dropped_.load()) {}
  AgentChannel& operator=(AgentChannel&& other) noexcept {
    fd_ = std::move(other.fd_);
    dropped_ = other.dropped_.load();
    return *this;
  }

  bool connected() const { return fd_.valid(); }
  // Queues `message`; drops it when the socket's buffer is full or the agent has gone.
  void Send(const AgentMessage& message);
  uint64_t dropped() const { return dropped_.load(); }

 private:
  UniqueFd fd_;
  std::atomic<uint64_t> dropped_{0};
};

}  // namespace dtrain
