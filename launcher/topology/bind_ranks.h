// Assigns cores, NUMA node, GPU and NIC to each rank of a node. A pure function.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/topology/topology.h"

namespace dtrain::launcher {

struct RankBinding {
  int local_rank = 0;
  std::vector<int> cpus;  // Logical CPUs; disjoint between ranks unless cores_shared. Empty: any.
  int cores = 0;          // Number of cores that those belong to, or on which to compute.
  int numa = -1;          // NUMA node of the first core; -1: unknown.
  int memory_node = -1;   // The NUMA node of all its cores, where there are several; -1: any.
  int gpu = -1;           // Index in NVML's order; -1: none.
  std::string nic;        // RDMA device; "": none is active, or its name is unknown.
  std::string nic_pci = {};  // Its PCI address; "": none.
};

struct RankPlan {
  std::vector<RankBinding> ranks;
  bool cores_shared = false;  // More ranks than cores.
  // A CPU quota gives less time than the cores have. It does not say which cores, and other
  // processes may choose the same ones, so ranks get a number of cores and no CPUs.
  bool cores_by_quota = false;
  bool gpus_shared = false;  // More ranks than GPUs.
};

// The first rank takes the first GPU by NUMA node and PCI address, and each next one the GPU that
// is nearest to the one before: by NVLinks, then on the PCI tree, then by NUMA node and address. So
// neighbours in rank are neighbours in the machine. Each has an equal share of the cores of its
// GPU's NUMA node and the nearest active NIC (NICs at the same distance in turn). Without GPUs the
// cores are cut into equal neighbouring blocks, whole NUMA nodes first if the number of ranks
// allows it; a remainder of cores stays free for the system. InvalidArgument when ranks < 1.
//
// A NIC that is at most half as fast as the fastest is left out (such as a front-end NIC beside
// those of the GPUs' network). If some are InfiniBand and some Ethernet, the kind with less
// bandwidth is left out, because the two cannot be connected.
absl::StatusOr<RankPlan> BindRanks(const Topology& topology, int ranks);

// The NICs among which ranks choose by distance.
std::vector<const Nic*> UsableNics(const Topology& topology);

}  // namespace dtrain::launcher
