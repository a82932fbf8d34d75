// `dtrain topo` and `dtrain doctor`. Each takes the arguments after its name, prints to stdout and
// returns the exit code.
#pragma once

#include <string>
#include <vector>

#include "base/job_env.h"

namespace dtrain::launcher {

// [--json] [--nproc-per-node N]: the node, and with N where N ranks would run.
int TopoMain(const std::vector<std::string>& arguments);

// [--json]: the findings. kExitUsage (64) when there is a problem, so that scripts can ask.
int DoctorMain(const std::vector<std::string>& arguments, const Environment& environment);

}  // namespace dtrain::launcher
