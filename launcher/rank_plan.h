// Which ranks run where, on which cores, with which environment. Pure functions.
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
  int cores = 0;          // To which those belong.
  std::string nic = {};   // RDMA device; "": none is known.
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
  int token_fd = -1;           // Number of the descriptor inside the rank.
  std::vector<int> gpu_order;  // By local rank, where it is not the driver's own order.

  int world_size() const;
  int first_rank() const;  // Of this node.
  int local_world_size() const { return ranks_of_node.at(static_cast<size_t>(node_rank)); }
};

// The slots of shape.node_rank, bound as `bindings` says; empty: not bound. Nor are ranks that
// outnumber the cores: sharing those is left to the kernel.
std::vector<RankSlot> PlanRanks(const JobShape& shape, const RankPlan& bindings);

// The GPUs of local ranks 0, 1, ... as JobShape takes them: none without GPUs, with several ranks
// on one, or where rank i has GPU i anyway.
std::vector<int> GpuOrder(const RankPlan& bindings);

// `base` (the launcher's own environment) with the rank's variables of base/job_env.h and
// torchrun's set. Only where `base` has none: OMP_NUM_THREADS, the rank's cores, its RDMA device,
// and CUDA_VISIBLE_DEVICES with CUDA_DEVICE_ORDER, so that the device LOCAL_RANK is the planned
// one.
Environment RankEnvironment(Environment base, const JobShape& shape, const RankSlot& slot);

// "KEY=value" lines, for exec.
std::vector<std::string> EnvironmentEntries(const Environment& environment);

// "3", "2,4-5": as taskset and cpusets print it.
std::string FormatCpus(const std::vector<int>& cpus);

}  // namespace dtrain::launcher
