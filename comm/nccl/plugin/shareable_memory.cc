#include "comm/nccl/plugin/shareable_memory.h"

#include <cuda_runtime_api.h>

#include "comm/nccl/plugin/cuda_error.h"
#include "comm/nccl/plugin/driver_memory.h"

namespace dtrain::comm {
namespace {

// Returns when `device` has finished all its work.
CudaResult WaitForDevice(int device) {
  int before = 0;
  CudaResult result = TakeError(cudaGetDevice(&before));
  if (result != CudaResult::kSuccess) {
    return result;
  }
  result = TakeError(cudaSetDevice(device));
  if (result == CudaResult::kSuccess) {
    result = TakeError(cudaDeviceSynchronize());
  }
  return FirstError(result, TakeError(cudaSetDevice(before)));
}

}  // namespace

CudaResult ShareableMemory::Malloc(void** data, size_t bytes) {
  size_t granule = 0;
  int device = 0;
  CudaMemory* memory = nullptr;
  CudaResult result =
      FirstError(DriverMemory::ExportableGranularity(&granule), TakeError(cudaGetDevice(&device)));
  if (result != CudaResult::kSuccess || bytes < granule) {
    return TakeError(cudaMalloc(data, bytes));
  }
  const size_t whole = (bytes + granule - 1) / granule * granule;
  result = DriverMemory::CreateExportable(&memory, whole);
  if (result == CudaResult::kOutOfMemory) {
    return result;
  }
  if (result == CudaResult::kSuccess) {
    result = DriverMemory::MapAnywhereForPeers(data, whole, granule, memory);
    if (result != CudaResult::kSuccess) {
      (void)DriverMemory::Destroy(memory);
    }
  }
  if (result != CudaResult::kSuccess) {
    return TakeError(cudaMalloc(data, bytes));
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
      return TakeError(cudaFree(data));
    }
    block = found->second;
  }
  // Work that is still queued may use the block, so it stays as it is when the wait fails, as
  // cudaFree frees nothing then.
  if (const CudaResult waited = WaitForDevice(block.device); waited != CudaResult::kSuccess) {
    return waited;
  }
  {
    const std::scoped_lock lock(mutex_);
    if (blocks_.erase(data) == 0) {
      return CudaResult::kInvalidValue;  // Another thread has freed the block meanwhile.
    }
  }
  CudaResult result = DriverMemory::Unmap(data, block.bytes);
  result = FirstError(result, DriverMemory::Free(data, block.bytes));
  return FirstError(result, DriverMemory::Destroy(block.memory));
}

}  // namespace dtrain::comm
