// A node as NCCL's topology file describes it (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE), version 1.
// Pure, but for ReadNcclFile.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "launcher/topology/nccl_xml.h"
#include "launcher/topology/topology.h"

namespace dtrain::launcher {

// The node of a file. Such a file names the switches of the PCI tree, not its roots and ports; it
// may leave out what NCCL is to find out, and then that stays unknown. InvalidArgument names the
// element and the attribute; it is one too if the file is a graph or describes several hosts.
absl::StatusOr<Topology> FromNccl(const NcclElement& root, const std::string& file);

// The element for a node: each NUMA node with the GPUs and NICs near it, behind their switches,
// with what is known of them.
NcclElement ToNccl(const Topology& topology);

// The elements of a file, for FromNccl. Errors name the path.
absl::StatusOr<NcclElement> ReadNcclFile(const std::string& path);

// "00000000,0000000f" as {0, 1, 2, 3}, and back in words of 32 bits that reach to `cpu_max`.
absl::StatusOr<std::vector<int>> ParseCpuMask(const std::string& mask);
std::string FormatCpuMask(const std::vector<int>& cpus, int cpu_max);

}  // namespace dtrain::launcher
