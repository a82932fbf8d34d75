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

// Opaque: a cudaStream_t, a cudaEvent_t and a cudaGraphExec_t point to these, and a
// CUmemGenericAllocationHandle stands for the last. A null stream is the default stream.
struct CudaStream;
struct CudaEvent;
struct CudaGraph;
struct CudaMemory;

// Only the caller learns of an error. CUDA's last error, by which the next launch of a kernel is
// judged, is clear again when a call returns. The values are those of cudaError_t. Any other value
// is an error too, and ErrorString explains it.
enum class CudaResult : int { kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotReady = 600 };

struct CudaDeviceFacts {
  std::string name;             // "NVIDIA H100 80GB HBM3".
  std::array<char, 16> uuid{};  // No other GPU has the same.
  int compute_capability = 0;   // 90 means sm_90.
};

class CudaApi {
 public:
  virtual ~CudaApi() = default;

  // The versions for reports: "CUDA runtime 13.0, driver 13.0 (/path/libcudart.so.13)".
  virtual std::string Description() = 0;
  // "cudaErrorNoDevice: no CUDA-capable device is detected".
  virtual std::string ErrorString(CudaResult result) = 0;

  virtual CudaResult DeviceCount(int* count) = 0;
  virtual CudaResult DeviceFacts(int device, CudaDeviceFacts* facts) = 0;
  // Makes `device` the calling thread's current one.
  virtual CudaResult SetDevice(int device) = 0;
  // Free and total bytes of the current device.
  virtual CudaResult MemoryInfo(size_t* free_bytes, size_t* total_bytes) = 0;

  // The stream does not synchronise with the default stream. With `high_priority` its blocks are
  // scheduled before those of other streams.
  virtual CudaResult StreamCreate(CudaStream** stream, bool high_priority) = 0;
  virtual CudaResult StreamDestroy(CudaStream* stream) = 0;
  // Blocks the host until `stream` is empty.
  virtual CudaResult StreamSynchronize(CudaStream* stream) = 0;
  // Later work on `stream` waits for what `event` has recorded; does not block the host.
  virtual CudaResult StreamWaitEvent(CudaStream* stream, CudaEvent* event) = 0;

  // From now on, work that is queued on `stream`, or on streams that wait for events of it, is
  // recorded and does not run. The same thread must end the capture. Until then its calls that
  // wait, query an event or allocate memory fail and spoil the capture. Those of other threads do
  // not (cudaStreamCaptureModeThreadLocal), so that a watchdog's thread may go on querying.
  virtual CudaResult StreamBeginCapture(CudaStream* stream) = 0;
  // Ends the capture in any case. Gives the recorded work as an instantiated graph, or the error
  // that spoilt the capture. `stream` must have waited for every stream that joined.
  virtual CudaResult StreamEndCapture(CudaStream* stream, CudaGraph** graph) = 0;
  virtual CudaResult StreamIsCapturing(CudaStream* stream, bool* capturing) = 0;
  // Queues the recorded work as one operation of `stream`, with the same addresses.
  virtual CudaResult GraphLaunch(CudaGraph* graph, CudaStream* stream) = 0;
  // Launches that are queued still run.
  virtual CudaResult GraphDestroy(CudaGraph* graph) = 0;

  // ElapsedMs needs `timing`; recording is cheaper without it.
  virtual CudaResult EventCreate(CudaEvent** event, bool timing) = 0;
  virtual CudaResult EventDestroy(CudaEvent* event) = 0;
  virtual CudaResult EventRecord(CudaEvent* event, CudaStream* stream) = 0;
  // May be called while `stream` is captured. Each launch of the graph then records `event` when it
  // comes to this place (cudaEventRecordExternal). A stream that waits for the event after the
  // launch waits for the work before this place and not for the graph's end. The event must outlive
  // the graph.
  virtual CudaResult EventRecordInGraph(CudaEvent* event, CudaStream* stream) = 0;
  // kNotReady until the work before the event is done.
  virtual CudaResult EventQuery(CudaEvent* event) = 0;
  virtual CudaResult ElapsedMs(float* milliseconds, CudaEvent* start, CudaEvent* end) = 0;

  // The direction follows from the pointers (unified addressing).
  virtual CudaResult CopyAsync(void* to, const void* from, size_t bytes, CudaStream* stream) = 0;
  virtual CudaResult FillAsync(void* data, uint8_t value, size_t bytes, CudaStream* stream) = 0;
  // Large blocks are rounded up to the granularity of device memory (2 MiB).
  virtual CudaResult MallocDevice(void** data, size_t bytes) = 0;
  // Waits for the device, and frees nothing if that fails. It must not be called while any thread
  // captures a stream of the device: CUDA forbids to wait for a device then, in every capture mode,
  // so that the call fails and spoils the capture.
  virtual CudaResult FreeDevice(void* data) = 0;
  // Page-locked host memory that every device can reach.
  virtual CudaResult MallocPinned(void** data, size_t bytes) = 0;
  virtual CudaResult FreePinned(void* data) = 0;

  // The virtual memory of the current device: its addresses, the memory behind them, and the
  // mapping of one to the other. Addresses and sizes are multiples of the granularity. Mapping and
  // unmapping do not wait for streams, so no queued work may use an address that is unmapped.
  virtual CudaResult MemoryGranularity(size_t* bytes) = 0;
  virtual CudaResult ReserveAddresses(void** data, size_t bytes) = 0;
  virtual CudaResult FreeAddresses(void* data, size_t bytes) = 0;
  virtual CudaResult CreateMemory(CudaMemory** memory, size_t bytes) = 0;
  virtual CudaResult DestroyMemory(CudaMemory* memory) = 0;
  // Maps the first `bytes` of `memory` at `data`, where the current device may read and write them.
  // Memory is mapped in one place at a time.
  virtual CudaResult MapMemory(void* data, size_t bytes, CudaMemory* memory) = 0;
  virtual CudaResult UnmapMemory(void* data, size_t bytes) = 0;
  // Allocates a little memory of which other processes can be given a handle, maps it and frees it.
  // LibTorch's expandable segments are made of such memory, and some containers refuse it.
  virtual CudaResult TryExportableMemory() = 0;
};

}  // namespace dtrain::comm
