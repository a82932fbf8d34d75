// `dtrain launch`: starts a job by its options and gives its exit code. Used by the main thread.
#pragma once

#include <string>
#include <vector>

#include "base/job_env.h"
#include "launcher/options.h"

namespace dtrain::launcher {

// Parses, launches and reports. Returns the exit code. REQUIRES: the main thread, no other thread.
int LaunchCommand(const std::vector<std::string>& arguments, const Environment& environment);

// The run directory by `options`: --run-dir, or the program's own --run-dir, or runs/PROGRAM. Pure.
std::string RunDirOf(const LaunchOptions& options);

}  // namespace dtrain::launcher
