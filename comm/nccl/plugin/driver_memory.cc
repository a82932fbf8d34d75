#include "comm/nccl/plugin/driver_memory.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "comm/nccl/plugin/cuda_error.h"

namespace dtrain::comm {
namespace {

// The versions of CUDA that brought these functions in their present form.
constexpr unsigned int kSince = 10020;
constexpr unsigned int kAttributesSince = 2000;

// An error of the driver is not a last error of the runtime, so nothing has to be cleared.
CudaResult Result(CUresult result) { return static_cast<CudaResult>(result); }
CUdeviceptr Address(void* data) { return reinterpret_cast<CUdeviceptr>(data); }
CUmemGenericAllocationHandle Native(CudaMemory* memory) {
  return reinterpret_cast<CUmemGenericAllocationHandle>(memory);
}

struct Functions {
  PFN_cuMemGetAllocationGranularity_v10020 granularity = nullptr;
  PFN_cuMemAddressReserve_v10020 reserve = nullptr;
  PFN_cuMemAddressFree_v10020 free = nullptr;
  PFN_cuMemCreate_v10020 create = nullptr;
  PFN_cuMemRelease_v10020 release = nullptr;
  PFN_cuMemMap_v10020 map = nullptr;
  PFN_cuMemSetAccess_v10020 set_access = nullptr;
  PFN_cuMemUnmap_v10020 unmap = nullptr;
  PFN_cuDeviceGetAttribute_v2000 attribute = nullptr;
  cudaError_t found = cudaSuccess;

  template <class Function>
  void Find(const char* name, Function& function, unsigned int since = kSince) {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult answer{};
    if (found == cudaSuccess) {
      found = cudaGetDriverEntryPointByVersion(name, &address, since, cudaEnableDefault, &answer);
    }
    if (found == cudaSuccess && address == nullptr) {
      found = cudaErrorNotSupported;
    }
    function = reinterpret_cast<Function>(address);
  }
};

const Functions& Driver() {
  static const Functions functions = [] {
    Functions all;
    all.Find("cuMemGetAllocationGranularity", all.granularity);
    all.Find("cuMemAddressReserve", all.reserve);
    all.Find("cuMemAddressFree", all.free);
    all.Find("cuMemCreate", all.create);
    all.Find("cuMemRelease", all.release);
    all.Find("cuMemMap", all.map);
    all.Find("cuMemSetAccess", all.set_access);
    all.Find("cuMemUnmap", all.unmap);
    all.Find("cuDeviceGetAttribute", all.attribute, kAttributesSince);
    return all;
  }();
  return functions;
}

// Sets `location` to the current device.
CudaResult SetToCurrentDevice(CUmemLocation& location) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return TakeError(error);
}

// An error tells why the driver's functions cannot be called.
CudaResult DriverStatus() { return TakeError(Driver().found); }
// The same, and makes the current device's context, which the driver needs.
CudaResult InitializedDriver() {
  const CudaResult found = DriverStatus();
  return found == CudaResult::kSuccess ? TakeError(cudaFree(nullptr)) : found;
}

CudaResult PlainProperties(CUmemAllocationProp& properties) {
  if (const CudaResult ready = InitializedDriver(); ready != CudaResult::kSuccess) {
    return ready;
  }
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  return SetToCurrentDevice(properties.location);
}

bool HasAttribute(CUdevice device, CUdevice_attribute attribute) {
  int value = 0;
  return Driver().attribute(&value, attribute, device) == CUDA_SUCCESS && value != 0;
}

constexpr auto kFile = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

// The properties that ncclMemAlloc asks for (NCCL 2.28, src/allocator.cc).
CudaResult ExportableProperties(CUmemAllocationProp& properties) {
  if (const CudaResult result = PlainProperties(properties); result != CudaResult::kSuccess) {
    return result;
  }
  const CUdevice device = properties.location.id;
  const bool fabric = HasAttribute(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
  properties.requestedHandleTypes =
      fabric ? static_cast<CUmemAllocationHandleType>(CU_MEM_HANDLE_TYPE_FABRIC | kFile) : kFile;
  const bool rdma =
      HasAttribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
  properties.allocFlags.gpuDirectRDMACapable = rdma ? 1 : 0;
  return CudaResult::kSuccess;
}

CudaResult CreateWith(const CUmemAllocationProp& properties, CudaMemory** memory, size_t bytes) {
  CUmemGenericAllocationHandle handle = 0;
  const CUresult made = Driver().create(&handle, bytes, &properties, 0);
  *memory = reinterpret_cast<CudaMemory*>(handle);
  return Result(made);
}

CudaResult GranularityOf(const CUmemAllocationProp& properties, size_t* bytes) {
  return Result(Driver().granularity(bytes, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
}

// With an `alignment` of 0 the driver uses its own.
CudaResult ReserveAt(void** data, size_t bytes, size_t alignment) {
  CUdeviceptr address = 0;
  const CUresult result = Driver().reserve(&address, bytes, alignment, 0, 0);
  *data = reinterpret_cast<void*>(address);
  return Result(result);
}

CudaResult Allow(void* data, size_t bytes, const CUmemLocation& device) {
  const CUmemAccessDesc access{.location = device, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return Result(Driver().set_access(Address(data), bytes, &access, 1));
}

// Gives the other devices that can reach the current one access to its memory. It is no error if a
// device is refused, because only transports between devices of one process would use the access.
void AllowPeers(void* data, size_t bytes) {
  CUmemLocation mine{};
  int count = 0;
  if (SetToCurrentDevice(mine) != CudaResult::kSuccess ||
      TakeError(cudaGetDeviceCount(&count)) != CudaResult::kSuccess) {
    return;
  }
  for (int device = 0; device < count; ++device) {
    int reaches = 0;
    if (device != mine.id &&
        TakeError(cudaDeviceCanAccessPeer(&reaches, device, mine.id)) == CudaResult::kSuccess &&
        reaches != 0) {
      (void)Allow(data, bytes, {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device});
    }
  }
}

}  // namespace

CudaResult DriverMemory::Granularity(size_t* bytes) {
  CUmemAllocationProp properties{};
  const CudaResult result = PlainProperties(properties);
  return result == CudaResult::kSuccess ? GranularityOf(properties, bytes) : result;
}

CudaResult DriverMemory::ExportableGranularity(size_t* bytes) {
  CUmemAllocationProp properties{};
  const CudaResult result = ExportableProperties(properties);
  return result == CudaResult::kSuccess ? GranularityOf(properties, bytes) : result;
}

CudaResult DriverMemory::Reserve(void** data, size_t bytes) {
  const CudaResult ready = InitializedDriver();
  return ready == CudaResult::kSuccess ? ReserveAt(data, bytes, /*alignment=*/0) : ready;
}

CudaResult DriverMemory::Free(void* data, size_t bytes) {
  const CudaResult found = DriverStatus();
  return found == CudaResult::kSuccess ? Result(Driver().free(Address(data), bytes)) : found;
}

CudaResult DriverMemory::Create(CudaMemory** memory, size_t bytes) {
  CUmemAllocationProp properties{};
  const CudaResult result = PlainProperties(properties);
  return result == CudaResult::kSuccess ? CreateWith(properties, memory, bytes) : result;
}

CudaResult DriverMemory::CreateExportable(CudaMemory** memory, size_t bytes) {
  CUmemAllocationProp properties{};
  CudaResult result = ExportableProperties(properties);
  if (result != CudaResult::kSuccess) {
    return result;
  }
  result = CreateWith(properties, memory, bytes);
  if (result == CudaResult::kSuccess || result == CudaResult::kOutOfMemory ||
      properties.requestedHandleTypes == kFile) {
    return result;
  }
  // The device has fabric handles, but the system may lack what they need, such as an IMEX channel.
  properties.requestedHandleTypes = kFile;
  return CreateWith(properties, memory, bytes);
}

CudaResult DriverMemory::Destroy(CudaMemory* memory) {
  const CudaResult found = DriverStatus();
  return found == CudaResult::kSuccess ? Result(Driver().release(Native(memory))) : found;
}

CudaResult DriverMemory::Map(void* data, size_t bytes, CudaMemory* memory) {
  CUmemLocation device{};
  if (const CudaResult placed = FirstError(DriverStatus(), SetToCurrentDevice(device));
      placed != CudaResult::kSuccess) {
    return placed;
  }
  if (const CUresult mapped = Driver().map(Address(data), bytes, 0, Native(memory), 0);
      mapped != CUDA_SUCCESS) {
    return Result(mapped);
  }
  const CudaResult allowed = Allow(data, bytes, device);
  if (allowed != CudaResult::kSuccess) {
    (void)Driver().unmap(Address(data), bytes);
  }
  return allowed;
}

CudaResult DriverMemory::MapAnywhereForPeers(void** data, size_t bytes, size_t granule,
                                             CudaMemory* memory) {
  CudaResult result = ReserveAt(data, bytes, granule);
  if (result != CudaResult::kSuccess) {
    return result;
  }
  result = Map(*data, bytes, memory);
  if (result != CudaResult::kSuccess) {
    (void)Free(*data, bytes);
    return result;
  }
  AllowPeers(*data, bytes);
  return result;
}

CudaResult DriverMemory::Unmap(void* data, size_t bytes) {
  const CudaResult found = DriverStatus();
  return found == CudaResult::kSuccess ? Result(Driver().unmap(Address(data), bytes)) : found;
}

CudaResult DriverMemory::TryExportable() {
  size_t bytes = 0;
  CudaMemory* memory = nullptr;
  CudaResult result = ExportableGranularity(&bytes);
  if (result == CudaResult::kSuccess) {
    result = CreateExportable(&memory, bytes);
  }
  if (result != CudaResult::kSuccess) {
    return result;
  }
  void* data = nullptr;
  result = MapAnywhereForPeers(&data, bytes, /*granule=*/bytes, memory);
  if (result == CudaResult::kSuccess) {
    result = Unmap(data, bytes);
    result = FirstError(result, Free(data, bytes));
  }
  return FirstError(result, Destroy(memory));
}

}  // namespace dtrain::comm
