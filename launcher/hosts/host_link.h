// The starter's end of one host: the ssh process (or the agent itself, on this host), its frames,
// and the output that it brings. Used by the main thread; never blocks.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"
#include "launcher/hosts/frames.h"
#include "launcher/hosts/host_plan.h"

namespace dtrain::launcher {

// Bytes that the starter writes to its own stdout and stderr.
struct StarterConsole {
  ByteQueue out{1};
  ByteQueue err{2};

  // Whether more output may be read. It is bounded, because a terminal may be stopped.
  bool HasRoom() const { return out.size() + err.size() < (1U << 20); }
};

class HostLink {
 public:
  enum class State {
    kWaiting,   // Not started yet.
    kGreeting,  // Started; the agent has not answered.
    kReady,     // It has answered.
    kMet,       // It was told where to meet, and starts its ranks.
    kEnded,     // Its process has ended.
  };

  explicit HostLink(HostPlan plan) : plan_(std::move(plan)) {}
  HostLink(HostLink&&) = default;
  HostLink& operator=(HostLink&&) = default;

  // Starts the process and queues the job's message.
  absl::Status Start(absl::string_view token);
  // Tells an agent that is ready where node 0's coordinator is; "": there is only one node.
  void Meet(absl::string_view endpoint);
  void SendSignal(int signal);
  // Closes the agent's stdin. One that has no ranks yet ends; one that has stops them.
  void HangUp();
  // Kills the process on this host. The agent of another sees that its stdin is closed.
  void Kill() const;

  // Reads, writes and shows what can be now. Node 0's output is shown as it is, that of others on
  // stderr with the host before each line.
  void Move(StarterConsole& console);
  // Whether the process has ended since the last call; then everything that it brought is shown.
  bool TakeEnd(StarterConsole& console);

  // Descriptors to poll; -1: none.
  int out_fd() const { return out_.get(); }
  int err_fd() const { return err_.get(); }
  int full_fd() const { return to_agent_.empty() ? -1 : in_.get(); }

  State state() const { return state_; }
  const HostPlan& plan() const { return plan_; }
  bool is_first() const { return plan_.job.node_rank == 0; }
  const HelloMessage& hello() const { return hello_; }
  const std::string& serving() const { return serving_; }  // Node 0's coordinator; "": not yet.
  std::optional<int> exit_code() const { return exit_code_; }
  // Says what ssh said last, or how its process ended.
  std::string Why() const;

 private:
  void ReadFrames(StarterConsole& console);
  void TakeFrame(const Frame& frame, StarterConsole& console);
  void ReadErrors(StarterConsole& console);
  void ShowLines(absl::string_view text, std::string& rest, StarterConsole& console) const;
  void ShowRests(StarterConsole& console);

  HostPlan plan_;
  State state_ = State::kWaiting;
  pid_t pid_ = -1;
  int wait_status_ = 0;
  UniqueFd in_;
  UniqueFd out_;
  UniqueFd err_;
  ByteQueue to_agent_{-1};
  FrameReader reader_{kPreamble};
  HelloMessage hello_;
  std::string serving_;
  std::optional<int> exit_code_;
  std::string refused_;   // Why its messages cannot be read.
  std::string said_;      // The end of what ssh wrote to stderr.
  std::string out_rest_;  // Lines without their ends yet, by stream.
  std::string err_rest_;
  std::string said_rest_;
};

}  // namespace dtrain::launcher
