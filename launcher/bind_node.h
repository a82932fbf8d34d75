// This node's topology decides about its ranks: cores, memory, GPU and NIC of each, and the
// variables of a network profile. Reads the machine; the descriptions are pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/job_env.h"
#include "launcher/options.h"
#include "launcher/topology/bind_ranks.h"
#include "launcher/topology/network_profile.h"

namespace dtrain::launcher {

// The number of ranks on this node, by --nproc-per-node or by Slurm. InvalidArgument also if a flag
// names a local rank that this node, the only one, does not have.
absl::StatusOr<int> RanksHere(const LaunchOptions& options);

struct NodeBinding {
  RankPlan plan;                         // Empty: ranks are not bound.
  std::vector<ProfileVariable> network;  // Empty without --network-profile.
};

// Reads the topology. Ranks are not bound if the options say so, or, with a warning, if the
// topology cannot be read: unbound ranks are slower but correct.
NodeBinding BindNode(const LaunchOptions& options, const Environment& environment, int ranks);

// The text of --dry-run for this node: each rank's place, command and variables. What is known only
// when the job has begun is said to be so.
std::string DescribeNode(const LaunchOptions& options, const Environment& environment,
                         const NodeBinding& binding, int ranks);

// A line for each variable of the profile; "" without one.
std::string DescribeNetwork(const std::string& profile,
                            const std::vector<ProfileVariable>& variables);

}  // namespace dtrain::launcher
