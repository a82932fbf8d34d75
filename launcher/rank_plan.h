// Which ranks run where, on which cores, with which environment. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/job_env.h"

namespace dtrain::launcher {

// A rank of this node.
struct RankSlot {
  int rank = 0;
  int local_rank = 0;
  std::vector<int> cpus;  // Logical CPUs that it is bound to; empty: not bound.
};

// What all ranks of one attempt on one node share.
struct JobShape {
  std::vector<int> ranks_of_node;  // By node rank; nodes may differ.
  int node_rank = 0;
  int attempt = 0;
  int restarts_max = 0;
  std::string run_id;
  std::string run_dir;  // Absolute.
  std::string store;    // host:port of the coordinator.
  std::string agent_socket;
  std::string host_address;  // "": not told.
  std::string node_id;
  std::string master_address;  // For programs that make their own meeting point (torch).
  int master_port = 0;
  std::string role = "default";
  int token_fd = -1;  // Number of the descriptor inside the rank.

  int world_size() const;
  int first_rank() const;  // Of this node.
  int local_world_size() const { return ranks_of_node.at(static_cast<size_t>(node_rank)); }
};

// Splits `cpus` (in topology order) into one contiguous block a rank, sizes differing by at most
// one. Empty blocks for all when there are fewer CPUs than ranks: sharing is left to the kernel.
std::vector<std::vector<int>> SplitCpus(const std::vector<int>& cpus, int ranks);

// The slots of shape.node_rank; `cpus` empty: no binding.
std::vector<RankSlot> PlanRanks(const JobShape& shape, const std::vector<int>& cpus);

// `base` (the launcher's own environment) with the rank's variables of base/job_env.h and
// torchrun's set. OMP_NUM_THREADS is set to the rank's cores only where `base` has none.
Environment RankEnvironment(Environment base, const JobShape& shape, const RankSlot& slot);

// "KEY=value" lines, for exec.
std::vector<std::string> EnvironmentEntries(const Environment& environment);

// "3", "2,4-5": as taskset and cpusets print it.
std::string FormatCpus(const std::vector<int>& cpus);

}  // namespace dtrain::launcher
