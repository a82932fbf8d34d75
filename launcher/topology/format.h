// Topology, rank plan and findings as text for people and JSON for programs. Pure functions.
#pragma once

#include <string>

#include "base/json.h"
#include "launcher/topology/bind_ranks.h"
#include "launcher/topology/doctor.h"
#include "launcher/topology/network_profile.h"
#include "launcher/topology/switch_tree.h"
#include "launcher/topology/topology.h"

namespace dtrain::launcher {

// Aligned tables: cores by NUMA node, caches, GPUs with their links and state, NICs with addresses
// and errors, who is how near to whom, the PCI tree, notes. What is not known reads "unknown", in
// JSON too.
std::string FormatTopology(const Topology& topology);
Json TopologyJson(const Topology& topology);

// The switches, each indented by its depth and with its nodes, and the place of `host`.
std::string FormatSwitches(const SwitchTree& tree, const std::string& host);
// The tree as a file that SwitchTree::Parse reads, in the form of Slurm's topology.conf.
std::string FormatTopologyConf(const SwitchTree& tree);
Json SwitchesJson(const SwitchTree& tree, const std::string& host);

Json VariablesJson(const std::vector<ProfileVariable>& variables);

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
