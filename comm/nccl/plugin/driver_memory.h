// CUDA's virtual memory, which only the driver's API has. The runtime gives the driver's functions
// by name, so that the plugin links no libcuda and loads where there is no driver.
#pragma once

#include <cstddef>

#include "comm/nccl/cuda_api.h"

namespace dtrain::comm {

// The functions are those of CudaApi with the same names. Errors of the driver have the runtime's
// numbers. Exportable memory has handles for other processes, also for those on an NVLink fabric if
// the device and the system have such handles, and suits GPUDirect RDMA if the device has that.
class DriverMemory {
 public:
  static CudaResult Granularity(size_t* bytes);
  static CudaResult ExportableGranularity(size_t* bytes);
  static CudaResult Reserve(void** data, size_t bytes);
  static CudaResult Free(void* data, size_t bytes);
  static CudaResult Create(CudaMemory** memory, size_t bytes);
  static CudaResult CreateExportable(CudaMemory** memory, size_t bytes);
  static CudaResult Destroy(CudaMemory* memory);
  static CudaResult Map(void* data, size_t bytes, CudaMemory* memory);
  // Reserves addresses for the first `bytes` of exportable `memory` and maps it there. The current
  // device may use it, and so may its peers, which are the process's other devices that can reach
  // it. `granule` is ExportableGranularity.
  static CudaResult MapAnywhereForPeers(void** data, size_t bytes, size_t granule,
                                        CudaMemory* memory);
  static CudaResult Unmap(void* data, size_t bytes);
  static CudaResult TryExportable();
};

}  // namespace dtrain::comm
