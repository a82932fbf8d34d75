// `dtrain launch`: starts a job by its options and gives its exit code. Used by the main thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/job_env.h"
#include "comm/net/job_key.h"
#include "comm/net/socket.h"
#include "launcher/options.h"

namespace dtrain::launcher {

// This node has it from the `dtrain launch` of another host that started it (hosts/).
struct NodeStart {
  comm::JobKey key;
  // Called on node 0 in each attempt, when its coordinator listens.
  std::function<void(const comm::Endpoint&)> serving;
};

// Launches by options that are ready, and reports. Returns the exit code. `start` is null unless
// another host started this node. REQUIRES: the main thread, no other thread.
int RunLaunch(const LaunchOptions& options, const Environment& environment,
              const NodeStart* start = nullptr);

// Parses, launches and reports. Returns the exit code. REQUIRES: the main thread, no other thread.
int LaunchCommand(const std::vector<std::string>& arguments, const Environment& environment);

// The run directory by `options`: --run-dir, or the program's own --run-dir, or runs/PROGRAM. Pure.
std::string RunDirOf(const LaunchOptions& options);

}  // namespace dtrain::launcher
