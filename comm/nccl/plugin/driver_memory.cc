#include "comm/nccl/plugin/driver_memory.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "comm/nccl/plugin/cuda_error.h"

namespace dtrain::comm {
namespace {

constexpr unsigned int kSince = 10020;  // CUDA 10.2 brought them, as they still are.
constexpr unsigned int kAttributesSince = 2000;

// The driver's own errors are no last error of the runtime.
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

// On the current device.
CudaResult Place(CUmemLocation& location) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return Told(error);
}

// OK, or why the driver's functions are not there.
CudaResult Ready() {
  const Functions& driver = Driver();
  return driver.found == cudaSuccess ? Told(cudaFree(nullptr))  // Makes the context.
                                     : Told(driver.found);
}

CudaResult Properties(CUmemAllocationProp& properties) {
  if (const CudaResult ready = Ready(); ready != CudaResult::kSuccess) {
    return ready;
  }
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  return Place(properties.location);
}

CudaResult ExportableProperties(CUmemAllocationProp& properties) {
  if (const CudaResult result = Properties(properties); result != CudaResult::kSuccess) {
    return result;
  }
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  int rdma = 0;
  const CUresult asked = Driver().attribute(
      &rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, properties.location.id);
  properties.allocFlags.gpuDirectRDMACapable = asked == CUDA_SUCCESS && rdma != 0 ? 1 : 0;
  return CudaResult::kSuccess;
}

CudaResult CreateWith(const CUmemAllocationProp& properties, CudaMemory** memory, size_t bytes) {
  CUmemGenericAllocationHandle handle = 0;
  const CUresult made = Driver().create(&handle, bytes, &properties, 0);
  *memory = reinterpret_cast<CudaMemory*>(handle);
  return Result(made);
}

}  // namespace

CudaResult DriverMemory::Granularity(size_t* bytes) {
  CUmemAllocationProp properties{};
  const CudaResult result = Properties(properties);
  return result != CudaResult::kSuccess
             ? result
             : Result(
                   Driver().granularity(bytes, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
}

CudaResult DriverMemory::Reserve(void** data, size_t bytes) {
  if (const CudaResult ready = Ready(); ready != CudaResult::kSuccess) {
    return ready;
  }
  CUdeviceptr address = 0;
  const CUresult result = Driver().reserve(&address, bytes, 0, 0, 0);
  *data = reinterpret_cast<void*>(address);
  return Result(result);
}

CudaResult DriverMemory::Free(void* data, size_t bytes) {
  return Result(Driver().free(Address(data), bytes));
}

CudaResult DriverMemory::Create(CudaMemory** memory, size_t bytes) {
  CUmemAllocationProp properties{};
  const CudaResult result = Properties(properties);
  return result == CudaResult::kSuccess ? CreateWith(properties, memory, bytes) : result;
}

CudaResult DriverMemory::CreateExportable(CudaMemory** memory, size_t bytes) {
  CUmemAllocationProp properties{};
  const CudaResult result = ExportableProperties(properties);
  return result == CudaResult::kSuccess ? CreateWith(properties, memory, bytes) : result;
}

CudaResult DriverMemory::Destroy(CudaMemory* memory) {
  return Result(Driver().release(Native(memory)));
}

CudaResult DriverMemory::Map(void* data, size_t bytes, CudaMemory* memory) {
  CUmemAccessDesc access{};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if (const CudaResult placed = Place(access.location); placed != CudaResult::kSuccess) {
    return placed;
  }
  if (const CUresult mapped = Driver().map(Address(data), bytes, 0, Native(memory), 0);
      mapped != CUDA_SUCCESS) {
    return Result(mapped);
  }
  const CUresult allowed = Driver().set_access(Address(data), bytes, &access, 1);
  if (allowed != CUDA_SUCCESS) {
    (void)Driver().unmap(Address(data), bytes);
  }
  return Result(allowed);
}

CudaResult DriverMemory::MapAnywhere(void** data, size_t bytes, CudaMemory* memory) {
  CudaResult result = Reserve(data, bytes);
  if (result != CudaResult::kSuccess) {
    return result;
  }
  result = Map(*data, bytes, memory);
  if (result != CudaResult::kSuccess) {
    (void)Free(*data, bytes);
  }
  return result;
}

CudaResult DriverMemory::Unmap(void* data, size_t bytes) {
  return Result(Driver().unmap(Address(data), bytes));
}

CudaResult DriverMemory::TryExportable() {
  size_t bytes = 0;
  CudaMemory* memory = nullptr;
  CudaResult result = Granularity(&bytes);
  if (result == CudaResult::kSuccess) {
    result = CreateExportable(&memory, bytes);
  }
  if (result != CudaResult::kSuccess) {
    return result;
  }
  void* data = nullptr;
  result = MapAnywhere(&data, bytes, memory);
  if (result == CudaResult::kSuccess) {
    result = Unmap(data, bytes);
    result = FirstError(result, Free(data, bytes));
  }
  return FirstError(result, Destroy(memory));
}

}  // namespace dtrain::comm
