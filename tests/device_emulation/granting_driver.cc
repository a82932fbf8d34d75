#include "tests/device_emulation/granting_driver.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

#include <string>
#include <unordered_map>

namespace dtrain::emulation {

GrantingDriver driver;

namespace {

int device = 1;

CUresult Granularity(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = kGranule;
  return CUDA_SUCCESS;
}
CUresult Reserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  *address = reinterpret_cast<CUdeviceptr>(malloc(bytes));
  ++driver.addresses;
  return CUDA_SUCCESS;
}
CUresult FreeAddress(CUdeviceptr address, size_t) {
  driver.calls.emplace_back("free addresses");
  free(reinterpret_cast<void*>(address));
  --driver.addresses;
  return CUDA_SUCCESS;
}
CUresult Create(CUmemGenericAllocationHandle* handle, size_t, const CUmemAllocationProp* properties,
                unsigned long long) {
  if (properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE &&
      driver.exportable != CUDA_SUCCESS) {
    return driver.exportable;
  }
  driver.created.push_back(*properties);
  *handle = static_cast<CUmemGenericAllocationHandle>(driver.created.size());
  ++driver.memories;
  return CUDA_SUCCESS;
}
CUresult Release(CUmemGenericAllocationHandle) {
  driver.calls.emplace_back("release");
  --driver.memories;
  return CUDA_SUCCESS;
}
CUresult Map(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) {
  driver.mapped += driver.mapping == CUDA_SUCCESS ? 1 : 0;
  return driver.mapping;
}
CUresult SetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }
CUresult Unmap(CUdeviceptr, size_t) {
  driver.calls.emplace_back("unmap");
  --driver.mapped;
  return CUDA_SUCCESS;
}
CUresult Attribute(int* value, CUdevice_attribute attribute, CUdevice) {
  *value =
      attribute == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED ? driver.rdma : 0;
  return CUDA_SUCCESS;
}

template <class Function>
void* Address(Function* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace
}  // namespace dtrain::emulation

using dtrain::emulation::driver;

extern "C" {

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** address, unsigned,
                                             unsigned long long, cudaDriverEntryPointQueryResult*) {
  using namespace dtrain::emulation;
  static const std::unordered_map<std::string, void*> functions = {
      {"cuMemGetAllocationGranularity", Address(&Granularity)},
      {"cuMemAddressReserve", Address(&Reserve)},
      {"cuMemAddressFree", Address(&FreeAddress)},
      {"cuMemCreate", Address(&Create)},
      {"cuMemRelease", Address(&Release)},
      {"cuMemMap", Address(&Map)},
      {"cuMemSetAccess", Address(&SetAccess)},
      {"cuMemUnmap", Address(&Unmap)},
      {"cuDeviceGetAttribute", Address(&Attribute)}};
  const auto found = functions.find(name);
  *address = found == functions.end() ? nullptr : found->second;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaGetDevice(int* index) {
  *index = dtrain::emulation::device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int index) {
  dtrain::emulation::device = index;
  driver.calls.emplace_back("device " + std::to_string(index));
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  driver.calls.emplace_back("wait");
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** data, size_t bytes) {
  *data = malloc(bytes);
  ++driver.mallocs;
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  driver.mallocs -= data != nullptr ? 1 : 0;
  free(data);
  return cudaSuccess;
}

}  // extern "C"
