// `dtrain topo` and `dtrain doctor`. Each takes the arguments after its name, prints to stdout and
// returns the exit code. Called by the main thread.
#pragma once

#include <string>
#include <vector>

#include "base/job_env.h"

namespace dtrain::launcher {

// Prints this node, or that of --hwloc-xml, --nccl-xml or --sysfs. With N of --nproc-per-node also
// where N ranks would run, with --topology-conf the cluster's switches, with --network-profile the
// variables.
int TopoMain(const std::vector<std::string>& arguments);

// [--json]: prints the findings. kExitUsage (64) when there is a problem, so that scripts can test
// for it.
int DoctorMain(const std::vector<std::string>& arguments, const Environment& environment);

}  // namespace dtrain::launcher
