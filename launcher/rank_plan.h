// The plan of a node's ranks: their cores, devices and environment. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/job_env.h"
#include "launcher/topology/bind_ranks.h"

namespace dtrain::launcher {

// A rank of this node.
struct RankSlot {
  int rank = 0;
  int local_rank = 0;
  std::vector<int> cpus;  // Logical CPUs that it is bound to; empty: not bound.
  int cores = 0;          // Number of cores that those CPUs belong to.
  std::string nic = {};   // RDMA device; "": none is known.
  int memory_node = -1;   // NUMA node from which it takes memory first; -1: any.
};

// The values that all ranks of one attempt on one node share.
struct JobShape {
  std::vector<int> ranks_of_node;  // By node rank; nodes may differ.
  int node_rank = 0;
  int attempt = 0;
  bool begins_job = false;  // Ranks follow --fresh in this attempt alone.
  int restarts_max = 0;
  std::string run_id;
  std::string run_dir;  // Absolute.
  std::string store;    // host:port of the coordinator.
  std::string agent_socket;
  std::string host_address;  // Address of this node; "": unknown.
  std::string node_id;
  std::string master_address;  // For programs that make their own meeting point (torch).
  int master_port = 0;
  std::string role = "default";
  bool reuse = false;          // Processes that stay after a failed attempt get another one.
  int token_fd = -1;           // Number of the descriptor inside the rank.
  std::vector<int> gpu_order;  // GPU of each local rank; empty for the driver's own order.
  Environment network;         // The variables of a network profile.

  int world_size() const;
  int first_rank() const;  // The first rank of this node.
  int local_world_size() const { return ranks_of_node.at(static_cast<size_t>(node_rank)); }
};

// The slots of shape.node_rank, bound as `bindings` says; empty: not bound. If there are more ranks
// than cores none is bound, and the kernel shares the cores.
std::vector<RankSlot> PlanRanks(const JobShape& shape, const RankPlan& bindings);

// The value of JobShape::gpu_order: the GPUs of local ranks 0, 1, ... Empty without GPUs, with
// several ranks on one, or if rank i has GPU i anyway.
std::vector<int> GpuOrder(const RankPlan& bindings);

// `base` (the launcher's own environment) with the rank's variables of base/job_env.h and
// torchrun's set. Some are set only if `base` lacks them: OMP_NUM_THREADS (the rank's cores), its
// RDMA device, the variables of the network profile, and CUDA_VISIBLE_DEVICES with
// CUDA_DEVICE_ORDER, so that the device LOCAL_RANK is the planned one.
Environment RankEnvironment(Environment base, const JobShape& shape, const RankSlot& slot);

// "KEY=value" lines, for exec.
std::vector<std::string> EnvironmentEntries(const Environment& environment);

// "3", "2,4-5": as taskset and cpusets print it.
std::string FormatCpus(const std::vector<int>& cpus);

}  // namespace dtrain::launcher
