// `dtrain topo` and `dtrain doctor`. Each takes the arguments after its name, prints to stdout and
// returns the exit code. Called by the main thread.
#pragma once

#include <string>
#include <vector>

#include "base/job_env.h"

namespace dtrain::launcher {

// [--json] [--nproc-per-node N]: prints the node and, with N, where N ranks would run.
int TopoMain(const std::vector<std::string>& arguments);

// [--json]: prints the findings. kExitUsage (64) when there is a problem, so that scripts can test
// for it.
int DoctorMain(const std::vector<std::string>& arguments, const Environment& environment);

}  // namespace dtrain::launcher
