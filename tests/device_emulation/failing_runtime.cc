// The functions of the CUDA runtime that the plugin calls, each of which fails: as CUDA's do it
// gives an error and remembers it as the thread's last one.
#include <cuda_runtime_api.h>

namespace dtrain::emulation {
namespace {

thread_local cudaError_t last_error = cudaSuccess;

cudaError_t Fail(cudaError_t error = cudaErrorUnknown) {
  last_error = error;
  return error;
}

}  // namespace
}  // namespace dtrain::emulation

using dtrain::emulation::Fail;

extern "C" {

cudaError_t cudaGetLastError() {
  const cudaError_t error = dtrain::emulation::last_error;
  dtrain::emulation::last_error = cudaSuccess;
  return error;
}
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorUnknown"; }
const char* cudaGetErrorString(cudaError_t) { return "unknown error"; }

cudaError_t cudaDeviceGetStreamPriorityRange(int*, int*) { return Fail(); }
cudaError_t cudaDriverGetVersion(int*) { return Fail(); }
cudaError_t cudaRuntimeGetVersion(int*) { return Fail(); }
cudaError_t cudaGetDevice(int*) { return Fail(); }
cudaError_t cudaGetDeviceCount(int*) { return Fail(cudaErrorNoDevice); }
cudaError_t cudaDeviceCanAccessPeer(int*, int, int) { return Fail(); }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp*, int) { return Fail(); }
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void**, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult*) {
  return Fail();
}
cudaError_t cudaSetDevice(int) { return Fail(); }
cudaError_t cudaDeviceSynchronize() { return Fail(); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t*, unsigned) { return Fail(); }
cudaError_t cudaEventDestroy(cudaEvent_t) { return Fail(); }
cudaError_t cudaEventElapsedTime(float*, cudaEvent_t, cudaEvent_t) { return Fail(); }
cudaError_t cudaEventQuery(cudaEvent_t) { return Fail(cudaErrorNotReady); }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return Fail(); }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t, cudaStream_t, unsigned) { return Fail(); }

cudaError_t cudaGraphDestroy(cudaGraph_t) { return Fail(); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return Fail(); }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t*, cudaGraph_t, unsigned long long) {
  return Fail();
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return Fail(); }

cudaError_t cudaFree(void*) { return Fail(); }
cudaError_t cudaFreeHost(void*) { return Fail(); }
cudaError_t cudaHostAlloc(void**, size_t, unsigned) { return Fail(cudaErrorMemoryAllocation); }
cudaError_t cudaMalloc(void**, size_t) { return Fail(cudaErrorMemoryAllocation); }
cudaError_t cudaMemGetInfo(size_t*, size_t*) { return Fail(); }
cudaError_t cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t) {
  return Fail();
}
cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t) { return Fail(); }

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) { return Fail(); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t*, unsigned, int) { return Fail(); }
cudaError_t cudaStreamDestroy(cudaStream_t) { return Fail(); }
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*) { return Fail(); }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus*) { return Fail(); }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return Fail(); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return Fail(); }

}  // extern "C"
