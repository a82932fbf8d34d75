#include "tests/device_emulation/granting_driver.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>

namespace dtrain::emulation {

GrantingDriver driver;

namespace {

int device = 1;

struct Range {
  size_t bytes = 0;
  bool mapped = false;
  std::set<int> devices;  // Those with access.
};
std::map<CUdeviceptr, Range> ranges;
struct Memory {
  size_t bytes = 0;
  size_t granule = 0;
};
std::map<CUmemGenericAllocationHandle, Memory> memories;

void* Pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

CUresult Wrong(const char* call) {
  driver.wrong.emplace_back(call);
  return CUDA_ERROR_INVALID_VALUE;
}

size_t GranuleOf(const CUmemAllocationProp& properties) {
  return (properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0 ? driver.fabric_granule
                                                                            : driver.granule;
}

bool IsWhole(size_t bytes, size_t granule) { return bytes > 0 && bytes % granule == 0; }

// The range that begins at `address` and is `bytes` long, or null.
Range* Find(CUdeviceptr address, size_t bytes) {
  const auto found = ranges.find(address);
  return found != ranges.end() && found->second.bytes == bytes ? &found->second : nullptr;
}

CUresult Granularity(size_t* bytes, const CUmemAllocationProp* properties,
                     CUmemAllocationGranularity_flags) {
  *bytes = GranuleOf(*properties);
  return CUDA_SUCCESS;
}
CUresult Reserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr,
                 unsigned long long) {
  if (!IsWhole(bytes, driver.granule)) {
    return Wrong("cuMemAddressReserve");
  }
  if (driver.reserving != CUDA_SUCCESS) {
    return driver.reserving;
  }
  alignment = std::max(alignment, driver.granule);
  void* const data =
      mmap(nullptr, bytes + 2 * alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  // The address is an odd multiple of what was asked for, so it is no better aligned.
  const auto first = reinterpret_cast<CUdeviceptr>(data);
  *address = first / alignment * alignment + alignment;
  *address += *address % (2 * alignment) == 0 ? alignment : 0;
  munmap(data, *address - first);
  munmap(Pointer(*address + bytes), first + 2 * alignment - *address);
  ranges[*address].bytes = bytes;
  ++driver.addresses;
  return CUDA_SUCCESS;
}
CUresult FreeAddress(CUdeviceptr address, size_t bytes) {
  driver.calls.emplace_back("free addresses");
  const Range* const range = Find(address, bytes);
  if (range == nullptr || range->mapped) {
    return Wrong("cuMemAddressFree");
  }
  munmap(Pointer(address), bytes);
  ranges.erase(address);
  --driver.addresses;
  return CUDA_SUCCESS;
}
CUresult Create(CUmemGenericAllocationHandle* handle, size_t bytes,
                const CUmemAllocationProp* properties, unsigned long long) {
  const bool of_fabric = (properties->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0;
  if (!IsWhole(bytes, GranuleOf(*properties)) || (of_fabric && driver.fabric == 0)) {
    return Wrong("cuMemCreate");
  }
  driver.created.push_back(*properties);
  if (of_fabric && driver.fabric_memory != CUDA_SUCCESS) {
    return driver.fabric_memory;
  }
  if (properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE &&
      driver.exportable != CUDA_SUCCESS) {
    return driver.exportable;
  }
  *handle = static_cast<CUmemGenericAllocationHandle>(driver.created.size());
  memories[*handle] = {bytes, GranuleOf(*properties)};
  ++driver.memories;
  return CUDA_SUCCESS;
}
CUresult Release(CUmemGenericAllocationHandle handle) {
  driver.calls.emplace_back("release");
  if (memories.erase(handle) == 0) {
    return Wrong("cuMemRelease");
  }
  --driver.memories;
  return CUDA_SUCCESS;
}
CUresult Map(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long) {
  Range* const range = Find(address, bytes);
  const auto memory = memories.find(handle);
  if (range == nullptr || range->mapped || offset != 0 || memory == memories.end() ||
      bytes > memory->second.bytes || !IsWhole(bytes, memory->second.granule) ||
      address % memory->second.granule != 0) {
    return Wrong("cuMemMap");
  }
  range->mapped = driver.mapping == CUDA_SUCCESS;
  driver.mapped += range->mapped ? 1 : 0;
  return driver.mapping;
}
CUresult SetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access, size_t count) {
  Range* const range = Find(address, bytes);
  if (range == nullptr || !range->mapped) {
    return Wrong("cuMemSetAccess");
  }
  for (size_t i = 0; i < count; ++i) {
    const int to = access[i].location.id;
    if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || to < 0 || to >= kDevices) {
      return Wrong("cuMemSetAccess");
    }
    if (to != device && driver.peer_access != CUDA_SUCCESS) {
      return driver.peer_access;
    }
    range->devices.insert(to);
    if (to == device) {
      mprotect(Pointer(address), bytes, PROT_READ | PROT_WRITE);
    }
  }
  return CUDA_SUCCESS;
}
CUresult Unmap(CUdeviceptr address, size_t bytes) {
  driver.calls.emplace_back("unmap");
  Range* const range = Find(address, bytes);
  if (range == nullptr || !range->mapped) {
    return Wrong("cuMemUnmap");
  }
  mprotect(Pointer(address), bytes, PROT_NONE);
  range->mapped = false;
  range->devices.clear();
  --driver.mapped;
  return CUDA_SUCCESS;
}
CUresult Attribute(int* value, CUdevice_attribute attribute, CUdevice) {
  *value = 0;
  if (attribute == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) {
    *value = driver.rdma;
  } else if (attribute == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED) {
    *value = driver.fabric;
  }
  return CUDA_SUCCESS;
}

template <class Function>
void* Address(Function* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

std::set<int> DevicesWithAccess(const void* data) {
  const auto found = ranges.find(reinterpret_cast<CUdeviceptr>(data));
  return found == ranges.end() ? std::set<int>{} : found->second.devices;
}

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
cudaError_t cudaGetDeviceCount(int* count) {
  *count = dtrain::emulation::kDevices;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int index) {
  dtrain::emulation::device = index;
  driver.calls.emplace_back("device " + std::to_string(index));
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int from, int to) {
  if (from == to) {
    return cudaErrorInvalidDevice;  // No device is its own peer.
  }
  constexpr int kLast = dtrain::emulation::kDevices - 1;
  *can = from != kLast && to != kLast ? 1 : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  driver.calls.emplace_back("wait");
  return static_cast<cudaError_t>(driver.waiting);
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
