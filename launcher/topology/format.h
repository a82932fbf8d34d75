// Topology, rank plan and findings as text for people and JSON for programs. Pure functions.
#pragma once

#include <string>

#include "base/json.h"
#include "launcher/topology/bind_ranks.h"
#include "launcher/topology/doctor.h"
#include "launcher/topology/topology.h"

namespace dtrain::launcher {

// Aligned tables: cores by NUMA node, GPUs with their links, NICs with distances, notes.
std::string FormatTopology(const Topology& topology);
Json TopologyJson(const Topology& topology);

std::string FormatRankPlan(const Topology& topology, const RankPlan& plan);
Json RankPlanJson(const RankPlan& plan);

std::string FormatFindings(const std::vector<Finding>& findings);
Json FindingsJson(const std::vector<Finding>& findings);

// {0,1,2,3,8} as "0-3,8".
std::string FormatCpuList(std::vector<int> cpus);
// "a CPU quota of 2.50 CPUs, "; "" without one.
std::string FormatQuota(double cpu_quota);
// 85899345920 as "80.0 GiB".
std::string FormatBytes(uint64_t bytes);

}  // namespace dtrain::launcher
