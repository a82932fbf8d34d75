// A driver whose virtual memory behaves as CUDA's: what was asked for is on record, what it does
// not allow is refused, and memory that no access was given to ends the process when it is touched.
#pragma once

#include <cuda.h>

#include <set>
#include <string>
#include <vector>

namespace dtrain::emulation {

// Three devices, of which the last is no peer of the others.
constexpr int kDevices = 3;
constexpr size_t kGranule = size_t{2} << 20;

struct GrantingDriver {
  // Answers to requests: for memory with a fabric handle, for memory with any handle, for
  // addresses, for mapping, for access of other devices than the current one, and to waits.
  CUresult fabric_memory = CUDA_SUCCESS;
  CUresult exportable = CUDA_SUCCESS;
  CUresult reserving = CUDA_SUCCESS;
  CUresult mapping = CUDA_SUCCESS;
  CUresult peer_access = CUDA_SUCCESS;
  int waiting = 0;  // cudaDeviceSynchronize's, a cudaError_t.

  int rdma = 1;                      // Whether the devices have GPUDirect RDMA with this memory,
  int fabric = 0;                    // and fabric handles.
  size_t granule = kGranule;         // The granularity of memory with file handles at most,
  size_t fabric_granule = kGranule;  // and of memory with fabric handles.

  std::vector<CUmemAllocationProp> created;
  std::vector<std::string> calls;  // Calls that take memory away, and waits.
  std::vector<std::string> wrong;  // Calls that CUDA does not allow.
  int memories = 0;                // How many exist, as the three below.
  int addresses = 0;
  int mapped = 0;
  int mallocs = 0;  // cudaMalloc's, not yet freed.
};

extern GrantingDriver driver;

// The devices that may use the mapped range at `data`. Empty: none, or nothing is mapped there.
std::set<int> DevicesWithAccess(const void* data);

}  // namespace dtrain::emulation
