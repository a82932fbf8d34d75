// The work of a host that starts others for `dtrain launch --hostfile`: it runs ssh, and the agent
// of its own host, and passes on all that they read and write. It decides nothing and reads none of
// it: whoever is behind a relay sees the starter, and the starter sees each host, as if there were
// no relay between. So a relay may itself be behind another one.
//
// Used by the main thread. It never blocks on one of its ends: output waits in a bounded queue.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "launcher/hosts/agent_process.h"
#include "launcher/hosts/channel_message.h"
#include "launcher/hosts/frames.h"
#include "launcher/ranks/signals.h"

namespace dtrain::launcher {

class HostRelay {
 public:
  // `reader` has the starter's frames behind the first, from stdin. `signals` tells of processes
  // that have ended. Stop signals are for the host's agent, which has to stop its ranks: a relay
  // ends with its starter.
  HostRelay(SignalSource& signals, FrameReader reader)
      : signals_(signals), reader_(std::move(reader)), to_starter_(1) {}

  // Blocks until the starter has closed stdin, or is lost, and all processes have ended. At the
  // loss of the starter their stdins are closed, so that agents stop their ranks and end.
  void Run();

 private:
  void Wait();
  void ReadFrames();
  void TakeFrames();
  void Take(const ChannelMessage& message);
  void MoveProcesses();
  void LoseStarter();
  void Send(uint32_t channel, ChannelEvent event, const std::string& bytes);

  SignalSource& signals_;
  FrameReader reader_;
  ByteQueue to_starter_;
  bool starter_lost_ = false;
  std::map<uint32_t, std::unique_ptr<AgentProcess>> processes_;  // By channel.
};

}  // namespace dtrain::launcher
