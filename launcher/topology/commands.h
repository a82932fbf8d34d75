// `dtrain topo` and `dtrain doctor`. Each takes the arguments after its name, prints to stdout and
// returns the exit code. Called by the main thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/job_env.h"
#include "launcher/topology/measured_switches.h"

namespace dtrain::launcher {

// Prints this node, or that of --hwloc-xml, --nccl-xml or --sysfs. With N of --nproc-per-node also
// where N ranks would run, with --topology-conf the cluster's switches, with --network-profile the
// variables. In a step of Slurm, SLURM_TOPOLOGY_ADDR in `environment` stands in for a file of
// switches that is not given or cannot be read. `measure` is for --measure: it gives the latencies
// between the hosts of the job of which this process is a rank, to rank 0 alone, which then prints.
using MeasureFunction =
    std::function<absl::StatusOr<std::optional<Latencies>>(const Environment& environment)>;
int TopoMain(const std::vector<std::string>& arguments, const Environment& environment = {},
             const MeasureFunction& measure = nullptr);

// [--json]: prints the findings. kExitUsage (64) when there is a problem, so that scripts can test
// for it.
int DoctorMain(const std::vector<std::string>& arguments, const Environment& environment);

}  // namespace dtrain::launcher
