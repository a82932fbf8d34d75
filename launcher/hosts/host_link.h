// The starter's end of one host: the process that talks for it (agent_process.h), its frames, and
// the output that it brings. Used by the main thread; never blocks.
#pragma once

#include <poll.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "launcher/hosts/agent_process.h"
#include "launcher/hosts/frames.h"
#include "launcher/hosts/host_plan.h"
#include "launcher/hosts/starter_console.h"

namespace dtrain::launcher {

class HostLink {
 public:
  enum class State {
    kWaiting,   // Not started yet.
    kGreeting,  // Started; the agent has not answered.
    kReady,     // It has answered.
    kMet,       // It was told where to meet, and starts its ranks.
    kEnded,     // Its process has ended.
  };

  explicit HostLink(HostPlan plan)
      : plan_(std::move(plan)), out_(plan_.host), err_(plan_.host), ssh_said_(plan_.host) {}
  HostLink(HostLink&&) = default;
  HostLink& operator=(HostLink&&) = default;

  // Takes the host's process over, which was started by ssh from the host `from` ("": this one),
  // and queues the job's message for it.
  void Start(absl::string_view token, std::unique_ptr<AgentProcess> process, std::string from);
  // Tells an agent that is ready where node 0's coordinator is; "": there is only one node.
  void Meet(absl::string_view endpoint);
  void SendSignal(int signal);
  // Closes the agent's stdin. One that has no ranks yet ends; one that has stops them.
  void HangUp();
  // Kills the process. The agent of another host sees that its stdin is closed.
  void Kill() const;

  // Reads, writes and shows what can be now. Node 0's output is shown as it is, that of others on
  // stderr with the host before each line.
  void Move(StarterConsole& console);
  // Whether the process has ended since the last call; then everything that it brought is shown.
  bool TakeEnd(StarterConsole& console);
  // Adds the descriptors to poll.
  void AddTo(std::vector<pollfd>& entries, bool may_read) const;

  State state() const { return state_; }
  const HostPlan& plan() const { return plan_; }
  const std::string& from() const { return from_; }
  bool is_first() const { return plan_.job.node_rank == 0; }
  const HelloMessage& hello() const { return hello_; }
  const std::string& serving() const { return serving_; }  // Node 0's coordinator; "": not yet.
  std::optional<int> exit_code() const { return exit_code_; }
  // Says what ssh said last, or how its process ended.
  std::string Why() const;

 private:
  void TakeOutput(absl::string_view bytes, StarterConsole& console);
  void TakeFrame(const Frame& frame, StarterConsole& console);
  void TakeErrors(absl::string_view text, StarterConsole& console);

  HostPlan plan_;
  State state_ = State::kWaiting;
  std::unique_ptr<AgentProcess> process_;  // Null: not started, or ended.
  std::string from_;
  std::optional<ProcessEnd> end_;
  FrameReader reader_{kPreamble};
  HelloMessage hello_;
  std::string serving_;
  std::optional<int> exit_code_;
  std::string refused_;  // Why its messages cannot be read.
  std::string said_;     // The end of what ssh wrote to stderr.
  HostLines out_;        // The agent's output and that of its ranks.
  HostLines err_;
  HostLines ssh_said_;
};

}  // namespace dtrain::launcher
