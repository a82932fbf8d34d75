// The plugin's calls of CUDA where each of them fails (failing_runtime.cc): the caller is told, and
// a later launch of a kernel, which asks for the last error, is not blamed.
#include "comm/nccl/plugin/real_cuda_api.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace dtrain::comm::real_cuda_api_test {
namespace {

using Call = std::function<CudaResult(CudaApi&)>;

// Every call that has a result. Their arguments do not matter.
std::vector<std::pair<std::string, Call>> Calls() {
  static int number = 0;
  static size_t bytes = 0;
  static float milliseconds = 0;
  static bool flag = false;
  static void* data = nullptr;
  static CudaDeviceFacts facts;
  static CudaStream* stream = nullptr;
  static CudaEvent* event = nullptr;
  static CudaGraph* graph = nullptr;
  static CudaMemory* memory = nullptr;
  return {
      {"DeviceCount", [](CudaApi& api) { return api.DeviceCount(&number); }},
      {"DeviceFacts", [](CudaApi& api) { return api.DeviceFacts(0, &facts); }},
      {"SetDevice", [](CudaApi& api) { return api.SetDevice(0); }},
      {"MemoryInfo", [](CudaApi& api) { return api.MemoryInfo(&bytes, &bytes); }},
      {"StreamCreate", [](CudaApi& api) { return api.StreamCreate(&stream, true); }},
      {"StreamDestroy", [](CudaApi& api) { return api.StreamDestroy(stream); }},
      {"StreamSynchronize", [](CudaApi& api) { return api.StreamSynchronize(stream); }},
      {"StreamWaitEvent", [](CudaApi& api) { return api.StreamWaitEvent(stream, event); }},
      {"StreamBeginCapture", [](CudaApi& api) { return api.StreamBeginCapture(stream); }},
      {"StreamEndCapture", [](CudaApi& api) { return api.StreamEndCapture(stream, &graph); }},
      {"StreamIsCapturing", [](CudaApi& api) { return api.StreamIsCapturing(stream, &flag); }},
      {"GraphLaunch", [](CudaApi& api) { return api.GraphLaunch(graph, stream); }},
      {"GraphDestroy", [](CudaApi& api) { return api.GraphDestroy(graph); }},
      {"EventCreate", [](CudaApi& api) { return api.EventCreate(&event, true); }},
      {"EventDestroy", [](CudaApi& api) { return api.EventDestroy(event); }},
      {"EventRecord", [](CudaApi& api) { return api.EventRecord(event, stream); }},
      {"EventRecordInGraph", [](CudaApi& api) { return api.EventRecordInGraph(event, stream); }},
      {"EventQuery", [](CudaApi& api) { return api.EventQuery(event); }},
      {"ElapsedMs", [](CudaApi& api) { return api.ElapsedMs(&milliseconds, event, event); }},
      {"CopyAsync", [](CudaApi& api) { return api.CopyAsync(data, data, 0, stream); }},
      {"FillAsync", [](CudaApi& api) { return api.FillAsync(data, 0, 0, stream); }},
      {"MallocDevice", [](CudaApi& api) { return api.MallocDevice(&data, 1); }},
      {"FreeDevice", [](CudaApi& api) { return api.FreeDevice(data); }},
      {"MallocPinned", [](CudaApi& api) { return api.MallocPinned(&data, 1); }},
      {"FreePinned", [](CudaApi& api) { return api.FreePinned(data); }},
      {"MemoryGranularity", [](CudaApi& api) { return api.MemoryGranularity(&bytes); }},
      {"ReserveAddresses", [](CudaApi& api) { return api.ReserveAddresses(&data, 1); }},
      {"FreeAddresses", [](CudaApi& api) { return api.FreeAddresses(data, 1); }},
      {"CreateMemory", [](CudaApi& api) { return api.CreateMemory(&memory, 1); }},
      {"DestroyMemory", [](CudaApi& api) { return api.DestroyMemory(memory); }},
      {"MapMemory", [](CudaApi& api) { return api.MapMemory(data, 1, memory); }},
      {"UnmapMemory", [](CudaApi& api) { return api.UnmapMemory(data, 1); }},
      {"TryExportableMemory", [](CudaApi& api) { return api.TryExportableMemory(); }},
  };
}

TEST(RealCudaApi, AnErrorIsToldAndNotLeftForTheNextLaunch) {
  CudaApi& api = *RealCuda();
  for (const auto& [name, call] : Calls()) {
    EXPECT_NE(call(api), CudaResult::kSuccess) << name;
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << name;
  }
  EXPECT_FALSE(api.Description().empty());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "Description";
}

// Without it the test above would prove nothing.
TEST(RealCudaApi, TheRuntimeBehavesAsCudasDoes) {
  EXPECT_EQ(cudaMalloc(nullptr, 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

}  // namespace
}  // namespace dtrain::comm::real_cuda_api_test
