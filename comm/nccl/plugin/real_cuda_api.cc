#include "comm/nccl/plugin/real_cuda_api.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "comm/nccl/plugin/cuda_error.h"
#include "comm/nccl/plugin/driver_memory.h"
#include "comm/nccl/plugin/shareable_memory.h"

namespace dtrain::comm {
namespace {

cudaStream_t Native(CudaStream* stream) { return reinterpret_cast<cudaStream_t>(stream); }
cudaEvent_t Native(CudaEvent* event) { return reinterpret_cast<cudaEvent_t>(event); }
cudaGraphExec_t Native(CudaGraph* graph) { return reinterpret_cast<cudaGraphExec_t>(graph); }

std::string Version(int version) { return absl::StrCat(version / 1000, ".", version % 1000 / 10); }

class Real final : public CudaApi {
 public:
  std::string Description() override {
    int runtime = 0;
    int driver = 0;
    (void)TakeError(cudaRuntimeGetVersion(&runtime));
    (void)TakeError(cudaDriverGetVersion(&driver));
    return absl::StrCat("CUDA runtime ", Version(runtime), ", driver ",
                        driver == 0 ? "none" : Version(driver));
  }
  std::string ErrorString(CudaResult result) override {
    const auto error = static_cast<cudaError_t>(result);
    return absl::StrCat(cudaGetErrorName(error), ": ", cudaGetErrorString(error));
  }
  CudaResult DeviceCount(int* count) override { return TakeError(cudaGetDeviceCount(count)); }
  CudaResult DeviceFacts(int device, CudaDeviceFacts* facts) override {
    cudaDeviceProp properties{};
    if (const cudaError_t error = cudaGetDeviceProperties(&properties, device);
        error != cudaSuccess) {
      return TakeError(error);
    }
    facts->name = properties.name;
    facts->compute_capability = 10 * properties.major + properties.minor;
    std::copy_n(properties.uuid.bytes, facts->uuid.size(), facts->uuid.begin());
    return CudaResult::kSuccess;
  }
  CudaResult SetDevice(int device) override { return TakeError(cudaSetDevice(device)); }
  CudaResult MemoryInfo(size_t* free_bytes, size_t* total_bytes) override {
    return TakeError(cudaMemGetInfo(free_bytes, total_bytes));
  }

  CudaResult StreamCreate(CudaStream** stream, bool high_priority) override {
    int lowest = 0;
    int highest = 0;
    if (const cudaError_t error = cudaDeviceGetStreamPriorityRange(&lowest, &highest);
        error != cudaSuccess) {
      return TakeError(error);
    }
    return TakeError(cudaStreamCreateWithPriority(reinterpret_cast<cudaStream_t*>(stream),
                                                  cudaStreamNonBlocking,
                                                  high_priority ? highest : lowest));
  }
  CudaResult StreamDestroy(CudaStream* stream) override {
    return TakeError(cudaStreamDestroy(Native(stream)));
  }
  CudaResult StreamSynchronize(CudaStream* stream) override {
    return TakeError(cudaStreamSynchronize(Native(stream)));
  }
  CudaResult StreamWaitEvent(CudaStream* stream, CudaEvent* event) override {
    return TakeError(cudaStreamWaitEvent(Native(stream), Native(event), 0));
  }

  CudaResult StreamBeginCapture(CudaStream* stream) override {
    return TakeError(cudaStreamBeginCapture(Native(stream), cudaStreamCaptureModeThreadLocal));
  }
  CudaResult StreamEndCapture(CudaStream* stream, CudaGraph** graph) override {
    cudaGraph_t recorded = nullptr;
    if (const cudaError_t error = cudaStreamEndCapture(Native(stream), &recorded);
        error != cudaSuccess) {
      return TakeError(error);
    }
    const cudaError_t made =
        cudaGraphInstantiate(reinterpret_cast<cudaGraphExec_t*>(graph), recorded, 0);
    (void)TakeError(cudaGraphDestroy(recorded));
    return TakeError(made);
  }
  CudaResult StreamIsCapturing(CudaStream* stream, bool* capturing) override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaError_t error = cudaStreamIsCapturing(Native(stream), &status);
    *capturing = status != cudaStreamCaptureStatusNone;
    return TakeError(error);
  }
  CudaResult GraphLaunch(CudaGraph* graph, CudaStream* stream) override {
    return TakeError(cudaGraphLaunch(Native(graph), Native(stream)));
  }
  CudaResult GraphDestroy(CudaGraph* graph) override {
    return TakeError(cudaGraphExecDestroy(Native(graph)));
  }

  CudaResult EventCreate(CudaEvent** event, bool timing) override {
    return TakeError(cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t*>(event),
                                              timing ? cudaEventDefault : cudaEventDisableTiming));
  }
  CudaResult EventDestroy(CudaEvent* event) override {
    return TakeError(cudaEventDestroy(Native(event)));
  }
  CudaResult EventRecord(CudaEvent* event, CudaStream* stream) override {
    return TakeError(cudaEventRecord(Native(event), Native(stream)));
  }
  CudaResult EventRecordInGraph(CudaEvent* event, CudaStream* stream) override {
    return TakeError(
        cudaEventRecordWithFlags(Native(event), Native(stream), cudaEventRecordExternal));
  }
  CudaResult EventQuery(CudaEvent* event) override {
    return TakeError(cudaEventQuery(Native(event)));
  }
  CudaResult ElapsedMs(float* milliseconds, CudaEvent* start, CudaEvent* end) override {
    return TakeError(cudaEventElapsedTime(milliseconds, Native(start), Native(end)));
  }

  CudaResult CopyAsync(void* to, const void* from, size_t bytes, CudaStream* stream) override {
    return TakeError(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, Native(stream)));
  }
  CudaResult FillAsync(void* data, uint8_t value, size_t bytes, CudaStream* stream) override {
    return TakeError(cudaMemsetAsync(data, value, bytes, Native(stream)));
  }
  CudaResult MallocDevice(void** data, size_t bytes) override {
    return memory_.Malloc(data, bytes);
  }
  CudaResult FreeDevice(void* data) override { return memory_.Free(data); }
  CudaResult MallocPinned(void** data, size_t bytes) override {
    return TakeError(cudaHostAlloc(data, bytes, cudaHostAllocPortable));
  }
  CudaResult FreePinned(void* data) override { return TakeError(cudaFreeHost(data)); }

  CudaResult MemoryGranularity(size_t* bytes) override { return DriverMemory::Granularity(bytes); }
  CudaResult ReserveAddresses(void** data, size_t bytes) override {
    return DriverMemory::Reserve(data, bytes);
  }
  CudaResult FreeAddresses(void* data, size_t bytes) override {
    return DriverMemory::Free(data, bytes);
  }
  CudaResult CreateMemory(CudaMemory** memory, size_t bytes) override {
    return DriverMemory::Create(memory, bytes);
  }
  CudaResult DestroyMemory(CudaMemory* memory) override { return DriverMemory::Destroy(memory); }
  CudaResult MapMemory(void* data, size_t bytes, CudaMemory* memory) override {
    return DriverMemory::Map(data, bytes, memory);
  }
  CudaResult UnmapMemory(void* data, size_t bytes) override {
    return DriverMemory::Unmap(data, bytes);
  }
  CudaResult TryExportableMemory() override { return DriverMemory::TryExportable(); }

 private:
  ShareableMemory memory_;
};

}  // namespace

CudaApi* RealCuda() {
  static Real* const api = new Real;
  return api;
}

}  // namespace dtrain::comm
