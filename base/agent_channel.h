// Rank -> agent messages over the node's Unix socket (DTRAIN_AGENT_SOCKET), one datagram each. A
// process that stays after a failed attempt also gets its orders there (base/next_attempt.h), and a
// rank whose attempt has failed elsewhere is told why.
//
// The rank's side never blocks and never fails a step: when the agent is slow or gone, messages are
// dropped and counted. The agent's side (launcher/) decodes with AgentMessage::Parse.
// AgentChannel is thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/unique_fd.h"

namespace dtrain {

// How far a rank is in the collectives of one group.
struct GroupProgress {
  std::string group;     // Equal for the same group on all its ranks.
  uint64_t entered = 0;  // Sequence number of the last collective that was entered, and left.
  uint64_t left = 0;
  std::string call = {};  // Name and signature of the last one that was entered.

  bool inside() const { return entered > left; }
};

// How long a rank took for the parts of a step, in seconds.
struct StepTimes {
  int64_t step = -1;  // The step that was finished; -1: the message has no times.
  double whole_s = 0;
  double data_s = 0;
  double forward_s = 0;
  double backward_s = 0;
  double update_s = 0;
};

// How long a rank may be without progress (docs/FAILURES.md), as its configuration says.
struct HangLimits {
  // comm.hang_timeout_s; 0: nothing is detected; below 0: the limit is learnt from the steps, and
  // is never below the number without its sign.
  double fixed_s = 0;
  double patience_s = 0;  // The longest pause of the program, the network or a disk.
  double slow_s = 0;      // The longest start, save or evaluation.
  double data_s = 0;      // comm.hang_data_timeout_s; 0: as in the other phases of a step.
};

struct AgentMessage {
  enum class Kind {
    kHello,  // The rank has started: pid and run directory.
    kBeat,   // Progress: step, phase, collectives; also without any, several times a second.
    kError,  // First-hand error of this rank, before it ends: text and exit code.
    kDone,   // The program returned: exit code.
    // The process can stay when its attempt fails. It listens for orders on this connection.
    kCanStay,
    kStays,  // The attempt has failed here with this exit code, and the process waits for the next.
    kStopping,  // The ranks stop behind `step`; `phase`: one of the two below.
  };
  static constexpr const char* kStepFinished = "finished";  // It is still to be saved.
  static constexpr const char* kStepSaved = "saved";        // Its checkpoint is committed.
  Kind kind = Kind::kBeat;
  int rank = 0;
  int pid = 0;
  int64_t step = 0;
  uint64_t collective = 0;  // Collectives started so far.
  int exit_code = 0;
  std::string phase =
      {};  // "start", "data", "forward", "backward", "update", "save", "eval", "program".
  std::string text = {};  // kHello: run directory; kError: the message.
  // kBeat: how often the rank has begun a phase. Beats with equal marks and collectives show no
  // progress between them.
  uint64_t marks = 0;
  std::vector<GroupProgress> groups = {};  // kBeat; at most kGroupsMax are sent.
  StepTimes times = {};                    // kBeat.
  HangLimits limits = {};                  // kBeat; all 0: not known yet.

  static constexpr size_t kGroupsMax = 4;

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
  // Blocks until the agent sends a text, at most kOrderMax bytes, or has gone (Unavailable).
  absl::StatusOr<std::string> Receive(Deadline deadline);
  static constexpr size_t kOrderMax = 256 << 10;
  // Why the attempt of this rank has failed elsewhere, once the agent has said so. Never blocks.
  std::optional<std::string> TakeFailure();
  static constexpr size_t kFailureMax = 2 << 10;
  // Becomes readable when TakeFailure may have something; -1 without an agent.
  int poll_fd() const { return fd_.get(); }
  uint64_t dropped() const { return dropped_.load(); }

 private:
  UniqueFd fd_;
  std::atomic<uint64_t> dropped_{0};
};

}  // namespace dtrain
