// `dtrain node-agent`: the agent of one host, which `dtrain launch --hostfile` starts there over
// ssh and speaks to on its stdin and stdout (frames.h). Not for users.
//
// It is two processes. The first talks to the starter: it passes stop signals on to the second and
// its output back. The second is an ordinary `dtrain launch` of one node. When the starter or the
// connection is lost, the second gets a stop signal, so that nothing is left running.
//
// A host that is to start others runs a third one before these, which does nothing else
// (host_relay.h).
#pragma once

#include <string>
#include <vector>

#include "base/job_env.h"

namespace dtrain::launcher {

// Returns the node's exit code. REQUIRES: the main thread, no other thread.
int NodeAgentCommand(const std::vector<std::string>& arguments, const Environment& environment);

}  // namespace dtrain::launcher
