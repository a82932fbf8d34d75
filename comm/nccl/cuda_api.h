// The CudaApi seam: the few CUDA runtime calls that the NCCL group and the runtime's staging need.
//
// The real twin lives in the CUDA plugin; the fake runs each stream as an in-order queue on a
// thread. Handles are CUDA's own (cudaStream_t, cudaEvent_t) under opaque names. Thread-safe, as
// CUDA is; the current device is a property of the calling thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace dtrain::comm {

struct CudaStream;  // Opaque: what cudaStream_t points to. Null is the default stream.
struct CudaEvent;   // Opaque: what cudaEvent_t points to.
struct CudaGraph;   // Opaque: what cudaGraphExec_t points to.
struct CudaMemory;  // Opaque: a CUmemGenericAllocationHandle.

// An error is its caller's alone: CUDA's last error, by which the next launch of a kernel is
// judged, is clear again when a call returns. Values of cudaError_t; any other value is an error
// that ErrorString explains.
enum class CudaResult : int { kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotReady = 600 };

struct CudaDeviceFacts {
  std::string name;             // "NVIDIA H100 80GB HBM3".
  std::array<char, 16> uuid{};  // Tells GPUs apart.
  int compute_capability = 0;   // 90: sm_90.
};

class CudaApi {
 public:
  virtual ~CudaApi() = default;

  // "CUDA runtime 13.0, driver 13.0 (/path/libcudart.so.13)": for reports.
  virtual std::string Description() = 0;
  // "cudaErrorNoDevice: no CUDA-capable device is detected".
  virtual std::string ErrorString(CudaResult result) = 0;

  virtual CudaResult DeviceCount(int* count) = 0;
  virtual CudaResult DeviceFacts(int device, CudaDeviceFacts* facts) = 0;
  // Makes it the calling thread's current device.
  virtual CudaResult SetDevice(int device) = 0;
  // Free and total bytes of the current device.
  virtual CudaResult MemoryInfo(size_t* free_bytes, size_t* total_bytes) = 0;

  // Does not synchronise with the default stream. `high_priority`: its blocks are scheduled first.
  virtual CudaResult StreamCreate(CudaStream** stream, bool high_priority) = 0;
  virtual CudaResult StreamDestroy(CudaStream* stream) = 0;
  // Blocks the host until `stream` is empty.
  virtual CudaResult StreamSynchronize(CudaStream* stream) = 0;
  // Later work on `stream` waits for what `event` has recorded; does not block the host.
  virtual CudaResult StreamWaitEvent(CudaStream* stream, CudaEvent* event) = 0;

  // From now on what is queued on `stream`, and on streams that wait for events of it, is recorded
  // and does not run. Ended by the same thread; of that thread alone, calls that wait, ask an event
  // or take memory fail meanwhile and spoil the capture (cudaStreamCaptureModeThreadLocal), so that
  // a watchdog's thread may go on asking.
  virtual CudaResult StreamBeginCapture(CudaStream* stream) = 0;
  // Ends it, whatever it gives: what was recorded, instantiated; or the error that spoilt it. Every
  // stream that joined must have been waited for.
  virtual CudaResult StreamEndCapture(CudaStream* stream, CudaGraph** graph) = 0;
  virtual CudaResult StreamIsCapturing(CudaStream* stream, bool* capturing) = 0;
  // Queues all that was recorded, as one operation of `stream`, with the same addresses.
  virtual CudaResult GraphLaunch(CudaGraph* graph, CudaStream* stream) = 0;
  // Launches that are queued still run.
  virtual CudaResult GraphDestroy(CudaGraph* graph) = 0;

  // `timing`: ElapsedMs may be asked; without it recording is cheaper.
  virtual CudaResult EventCreate(CudaEvent** event, bool timing) = 0;
  virtual CudaResult EventDestroy(CudaEvent* event) = 0;
  virtual CudaResult EventRecord(CudaEvent* event, CudaStream* stream) = 0;
  // While `stream` is captured: each launch of the graph records `event` where it comes to this
  // place, so that who waits for it after the launch waits for what is before this place, and not
  // for the graph's end (cudaEventRecordExternal). The event outlives the graph.
  virtual CudaResult EventRecordInGraph(CudaEvent* event, CudaStream* stream) = 0;
  // kNotReady until the work recorded is done.
  virtual CudaResult EventQuery(CudaEvent* event) = 0;
  virtual CudaResult ElapsedMs(float* milliseconds, CudaEvent* start, CudaEvent* end) = 0;

  // The direction follows from the pointers (unified addressing).
  virtual CudaResult CopyAsync(void* to, const void* from, size_t bytes, CudaStream* stream) = 0;
  virtual CudaResult FillAsync(void* data, uint8_t value, size_t bytes, CudaStream* stream) = 0;
  // Large blocks are rounded up to the granularity of device memory (2 MiB).
  virtual CudaResult MallocDevice(void** data, size_t bytes) = 0;
  // Waits for the device, and frees nothing where that fails. Not while a stream of the device is
  // captured, by whatever thread: CUDA forbids to wait for a device then in every capture mode, so
  // this fails and spoils the capture.
  virtual CudaResult FreeDevice(void* data) = 0;
  // Page-locked host memory that every device can reach.
  virtual CudaResult MallocPinned(void** data, size_t bytes) = 0;
  virtual CudaResult FreePinned(void* data) = 0;

  // Virtual memory of the current device: addresses, the memory behind them, and what is mapped
  // where. Addresses and sizes are multiples of the granularity. Mapping and unmapping do not wait
  // for streams: what is queued must be done with an address whose memory goes.
  virtual CudaResult MemoryGranularity(size_t* bytes) = 0;
  virtual CudaResult ReserveAddresses(void** data, size_t bytes) = 0;
  virtual CudaResult FreeAddresses(void* data, size_t bytes) = 0;
  virtual CudaResult CreateMemory(CudaMemory** memory, size_t bytes) = 0;
  virtual CudaResult DestroyMemory(CudaMemory* memory) = 0;
  // The first `bytes` of `memory` at `data`, which the current device may read and write. Memory
  // is mapped in one place at a time.
  virtual CudaResult MapMemory(void* data, size_t bytes, CudaMemory* memory) = 0;
  virtual CudaResult UnmapMemory(void* data, size_t bytes) = 0;
  // Takes a little memory of the kind that other processes may be given a handle of, maps it and
  // gives it back: what LibTorch's expandable segments are made of, and what some containers
  // refuse.
  virtual CudaResult TryExportableMemory() = 0;
};

}  // namespace dtrain::comm
