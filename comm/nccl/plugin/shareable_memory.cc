#include "comm/nccl/plugin/shareable_memory.h"

#include <cuda_runtime_api.h>

#include "comm/nccl/plugin/cuda_error.h"
#include "comm/nccl/plugin/driver_memory.h"

namespace dtrain::comm {
namespace {

// The first that is not OK.
CudaResult First(CudaResult before, CudaResult after) {
  return before != CudaResult::kSuccess ? before : after;
}

// Addresses for `bytes` with `memory` behind them.
CudaResult Place(void** data, size_t bytes, CudaMemory* memory) {
  CudaResult result = DriverMemory::Reserve(data, bytes);
  if (result != CudaResult::kSuccess) {
    return result;
  }
  result = DriverMemory::Map(*data, bytes, memory);
  if (result != CudaResult::kSuccess) {
    (void)DriverMemory::Free(*data, bytes);
  }
  return result;
}

// What the memory's device has begun is done with it.
CudaResult WaitForDevice(int device) {
  int before = 0;
  CudaResult result = Told(cudaGetDevice(&before));
  result = First(result, Told(cudaSetDevice(device)));
  result = First(result, Told(cudaDeviceSynchronize()));
  return First(result, Told(cudaSetDevice(before)));
}

}  // namespace

CudaResult ShareableMemory::Malloc(void** data, size_t bytes) {
  size_t granule = 0;
  int device = 0;
  CudaMemory* memory = nullptr;
  CudaResult result = First(DriverMemory::Granularity(&granule), Told(cudaGetDevice(&device)));
  if (result != CudaResult::kSuccess || bytes < granule) {
    return Told(cudaMalloc(data, bytes));
  }
  const size_t whole = (bytes + granule - 1) / granule * granule;
  result = DriverMemory::CreateExportable(&memory, whole);
  if (result == CudaResult::kOutOfMemory) {
    return result;
  }
  if (result == CudaResult::kSuccess) {
    result = Place(data, whole, memory);
    if (result != CudaResult::kSuccess) {
      (void)DriverMemory::Destroy(memory);
    }
  }
  if (result != CudaResult::kSuccess) {
    return Told(cudaMalloc(data, bytes));
  }
  const std::scoped_lock lock(mutex_);
  blocks_[*data] = {whole, memory, device};
  return CudaResult::kSuccess;
}

CudaResult ShareableMemory::Free(void* data) {
  Block block = {};
  {
    const std::scoped_lock lock(mutex_);
    const auto found = blocks_.find(data);
    if (found == blocks_.end()) {
      return Told(cudaFree(data));
    }
    block = found->second;
    blocks_.erase(found);
  }
  CudaResult result = WaitForDevice(block.device);
  result = First(result, DriverMemory::Unmap(data, block.bytes));
  result = First(result, DriverMemory::Free(data, block.bytes));
  return First(result, DriverMemory::Destroy(block.memory));
}

}  // namespace dtrain::comm
