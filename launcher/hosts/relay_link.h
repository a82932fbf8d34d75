// The starter's end of a host that starts others for it (host_relay.h), and the processes that run
// there. Used by the main thread; never blocks.
#pragma once

#include <poll.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "launcher/hosts/agent_process.h"
#include "launcher/hosts/channel_message.h"
#include "launcher/hosts/frames.h"
#include "launcher/hosts/starter_console.h"

namespace dtrain::launcher {

class RelayLink {
 public:
  enum class State {
    kStarting,  // It has not answered.
    kReady,     // Processes can be started there.
    kFailed,    // It did not answer in time, is another version, or its connection has ended.
  };

  // `process` is the host's `dtrain node-agent`, which is to work in `directory`. It fails unless
  // it has answered by `answer_by`.
  RelayLink(std::string host, std::unique_ptr<AgentProcess> process, const std::string& directory,
            Deadline answer_by);
  RelayLink(const RelayLink&) = delete;
  RelayLink& operator=(const RelayLink&) = delete;

  // Starts `command` on that host; without words, the host's own agent. The process must not
  // outlive this object. REQUIRES: kReady.
  std::unique_ptr<AgentProcess> Start(const std::vector<std::string>& command);

  // Reads and writes what can be now, and shows what ssh says about the connection.
  void Move(StarterConsole& console);
  // Adds the descriptors to poll.
  void AddTo(std::vector<pollfd>& entries, bool may_read) const;
  // Closes its stdin: it ends behind its processes.
  void HangUp();
  void Kill();

  State state() const { return state_; }
  bool has_ended() const { return process_ == nullptr; }

 private:
  friend class RelayedProcess;

  // What has come from one of its processes and was not taken yet.
  struct Arrived {
    bool is_own = false;  // The agent of that host.
    std::string out;
    std::string err;
    std::optional<ProcessEnd> end;
  };

  void Send(uint32_t channel, ChannelEvent event, absl::string_view bytes);
  void TakeOutput(absl::string_view bytes);
  void TakeFrame(const Frame& frame);
  void TakeMessage(const ChannelMessage& message);
  void Fail();
  void End(const ProcessEnd& end);

  std::string host_;
  std::unique_ptr<AgentProcess> process_;  // Null: it has ended.
  Deadline answer_by_;
  State state_ = State::kStarting;
  FrameReader reader_{kPreamble};
  uint32_t next_channel_ = 1;
  std::map<uint32_t, Arrived> arrived_;  // By channel.
  std::string said_;                     // The end of what ssh wrote to stderr.
  HostLines ssh_said_;
};

}  // namespace dtrain::launcher
