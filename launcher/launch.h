// `dtrain launch`: from options to the job's exit code.
#pragma once

#include <string>
#include <vector>

#include "base/job_env.h"
#include "launcher/options.h"

namespace dtrain::launcher {

// Parses, launches and reports. Returns the exit code. REQUIRES: the main thread, no other thread.
int LaunchCommand(const std::vector<std::string>& arguments, const Environment& environment);

// The run directory that `options` give: --run-dir, else the program's --run-dir, else
// runs/PROGRAM. Pure.
std::string RunDirOf(const LaunchOptions& options);

}  // namespace dtrain::launcher
