// A driver whose virtual memory is on record: what was asked for, what is mapped and what is left.
#pragma once

#include <cuda.h>

#include <string>
#include <vector>

namespace dtrain::emulation {

struct GrantingDriver {
  CUresult exportable = CUDA_SUCCESS;  // The answer to a request for exportable memory,
  CUresult mapping = CUDA_SUCCESS;     // and to mapping.
  int rdma = 1;                        // GPUDirect RDMA with this memory.
  std::vector<CUmemAllocationProp> created;
  std::vector<std::string> calls;  // Those that take memory away, and waits.
  int memories = 0;                // There at present, as the two below.
  int addresses = 0;
  int mapped = 0;
  int mallocs = 0;  // cudaMalloc's, not yet freed.
};

constexpr size_t kGranule = size_t{2} << 20;

extern GrantingDriver driver;

}  // namespace dtrain::emulation
