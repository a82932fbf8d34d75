// A CudaApi on the host. Each stream is a thread that runs its operations in order. Device memory
// is host memory that the fake keeps a list of, so that it notices a collective on a wrong pointer.
//
// Thread-safe. It must be made after fork, because a forked process has none of its parent's
// threads. The destructor ends operations that hang and joins every stream.
//
// host_stream() stands for the stream on which a program computes with host code. Its operations
// run in the calling thread at once, so that they are in order with that code. It keeps two
// differences of a real stream: a copy from it to pinned memory lands only when an event that was
// recorded after it is found done, and pinned memory that changes between a copy from it and such
// an event is a violation.
//
// Each thread has a current device, which is 0 until it chooses. Streams and events belong to the
// device that was current when they were made, the default stream belongs to the current one, and
// an event can be recorded only on streams of its own device.
//
// There is one capture at a time. A graph runs its operations one after the other in the order of
// their recording, also if they were recorded on several streams.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "comm/nccl/cuda_api.h"
#include "comm/nccl/fake/fake_addresses.h"

namespace dtrain::comm {

class FakeCapture;
class FakeStream;
struct FakeEvent;
struct FakeGraph;

class FakeCuda final : public CudaApi {
 public:
  explicit FakeCuda(int devices = 1);
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;
  ~FakeCuda() override;

  std::string Description() override;
  std::string ErrorString(CudaResult result) override;
  CudaResult DeviceCount(int* count) override;
  CudaResult DeviceFacts(int device, CudaDeviceFacts* facts) override;
  CudaResult SetDevice(int device) override;
  CudaResult MemoryInfo(size_t* free_bytes, size_t* total_bytes) override;
  CudaResult StreamCreate(CudaStream** stream, bool high_priority) override;
  CudaResult StreamDestroy(CudaStream* stream) override;
  CudaResult StreamSynchronize(CudaStream* stream) override;
  CudaResult StreamWaitEvent(CudaStream* stream, CudaEvent* event) override;
  CudaResult StreamBeginCapture(CudaStream* stream) override;
  CudaResult StreamEndCapture(CudaStream* stream, CudaGraph** graph) override;
  CudaResult StreamIsCapturing(CudaStream* stream, bool* capturing) override;
  CudaResult GraphLaunch(CudaGraph* graph, CudaStream* stream) override;
  CudaResult GraphDestroy(CudaGraph* graph) override;
  CudaResult EventCreate(CudaEvent** event, bool timing) override;
  CudaResult EventDestroy(CudaEvent* event) override;
  CudaResult EventRecord(CudaEvent* event, CudaStream* stream) override;
  CudaResult EventRecordInGraph(CudaEvent* event, CudaStream* stream) override;
  CudaResult EventQuery(CudaEvent* event) override;
  CudaResult ElapsedMs(float* milliseconds, CudaEvent* start, CudaEvent* end) override;
  CudaResult CopyAsync(void* to, const void* from, size_t bytes, CudaStream* stream) override;
  CudaResult FillAsync(void* data, uint8_t value, size_t bytes, CudaStream* stream) override;
  CudaResult MallocDevice(void** data, size_t bytes) override;
  CudaResult FreeDevice(void* data) override;
  CudaResult MallocPinned(void** data, size_t bytes) override;
  CudaResult FreePinned(void* data) override;
  CudaResult MemoryGranularity(size_t* bytes) override;
  CudaResult ReserveAddresses(void** data, size_t bytes) override;
  CudaResult FreeAddresses(void* data, size_t bytes) override;
  CudaResult CreateMemory(CudaMemory** memory, size_t bytes) override;
  CudaResult DestroyMemory(CudaMemory* memory) override;
  CudaResult MapMemory(void* data, size_t bytes, CudaMemory* memory) override;
  CudaResult UnmapMemory(void* data, size_t bytes) override;
  CudaResult TryExportableMemory() override { return exportable_memory_; }

  CudaStream* host_stream() const { return host_stream_; }
  // How many StreamSynchronize calls all threads made so far.
  int synchronizations() const { return synchronizations_; }
  // How many operations hosts queued so far. A launch of a graph counts as one, and a recorded
  // operation does not count.
  int64_t queued() const { return queued_; }
  // How often streams waited so far for events that a graph recorded last.
  int waits_inside_graphs() const { return waits_inside_graphs_; }
  // How many graphs were launched so far.
  int graph_launches() const { return graph_launches_; }
  // How many EventQuery calls all threads made so far.
  int64_t event_queries() const { return event_queries_; }
  // The calling thread's current device.
  int current_device() const;
  bool IsOnDevice(CudaStream* stream, int device);
  // Spoils the capture of the calling thread, as a call that waits does, and gives the error of
  // such a call. kSuccess if the thread captures nothing.
  CudaResult Forbid();
  // From now on each operation of a stream with a thread starts so much later, so that code which
  // does not wait for it is certainly too early.
  void SlowDown(std::chrono::microseconds delay) { delay_us_ = delay.count(); }
  // While it `hangs`, hosts find no event done, as if the device were stuck.
  void Hang(bool hangs) { hangs_ = hangs; }
  // After so many more copies, those to or from pinned memory fail on streams with a thread.
  void FailCopiesAfter(int64_t copies) { copies_left_ = copies; }
  // Sets the name that DeviceFacts gives every device.
  void SetName(std::string name) { name_ = std::move(name); }
  // Sets how much MemoryInfo says is free.
  void SetFreeMemory(size_t bytes) { free_bytes_ = bytes; }
  // From now on CreateMemory gives so many bytes in all, and then reports that memory is out.
  void LimitMemory(size_t bytes) { addresses_.Limit(bytes); }
  // Sets the result of TryExportableMemory, because drivers in some containers refuse such memory.
  void SetExportableMemory(CudaResult result) { exportable_memory_ = result; }
  // How many UnmapMemory calls were made so far.
  int unmaps() const { return addresses_.unmaps(); }
  // Queues `operation` on `stream` (null: the default stream).
  CudaResult Enqueue(CudaStream* stream, std::function<void()> operation);
  // Whether [data, data + bytes) lies inside one MallocDevice block.
  bool IsDeviceMemory(const void* data, size_t bytes) const;
  // True once the destructor runs: operations that wait must end then.
  const std::atomic<bool>& stopping() const { return stopping_; }
  // The calls that are errors or undefined in CUDA, such as unknown streams or double frees.
  std::vector<std::string> violations() const;
  // How many device and pinned blocks, addresses, memories, streams, events and graphs are not
  // freed yet.
  int live_handles() const;
  // The size of all MallocPinned blocks that are not freed yet.
  size_t pinned_bytes() const;

 private:
  std::shared_ptr<FakeStream> Find(CudaStream* stream);
  std::shared_ptr<FakeEvent> Find(CudaEvent* event);
  CudaResult Violation(const std::string& text);
  // Gives `result`, and notes a violation if it is kInvalidValue.
  CudaResult CheckAllowed(CudaResult result, const char* what);
  // A copy on the host's stream, until an event shows that it is done.
  struct HostCopy {
    void* to = nullptr;  // Pinned memory that gets `bytes`. Null: `from` must still hold them.
    const void* from = nullptr;
    std::vector<char> bytes;
  };
  void CopyOnHostStream(void* to, const void* from, size_t bytes);
  // If `stream` takes part in a capture, records `operation` there and gives true.
  bool Record(CudaStream* stream, const std::function<void()>& operation);
  CudaResult Run(CudaStream* stream, std::function<void()> operation);
  // The result of a query of an event that was recorded in that capture, which the query spoils.
  CudaResult QueryCaptured(uint64_t capture);
  // Settles the first `host_copies` copies, which an event has shown to be done.
  void Settle(uint64_t host_copies);
  static bool Holds(const std::map<char*, size_t>& blocks, const void* data, size_t bytes);
  CudaResult Malloc(std::map<char*, size_t>& blocks, void** data, size_t bytes);
  CudaResult Free(std::map<char*, size_t>& blocks, void* data, const char* what);

  const uint64_t number_;  // A thread may have used other fakes before, which have other numbers.
  const int devices_;
  std::string name_ = "fake GPU";
  std::atomic<bool> stopping_{false};
  std::atomic<int> synchronizations_{0};
  std::atomic<int64_t> queued_{0};
  std::atomic<int64_t> event_queries_{0};
  std::atomic<int> graph_launches_{0};
  std::atomic<int> waits_inside_graphs_{0};
  std::atomic<int64_t> delay_us_{0};
  std::atomic<bool> hangs_{false};
  std::atomic<CudaResult> exportable_memory_{CudaResult::kSuccess};
  std::atomic<size_t> free_bytes_{size_t{1} << 30};
  std::atomic<int64_t> copies_left_{std::numeric_limits<int64_t>::max()};
  CudaStream* host_stream_ = nullptr;
  mutable std::mutex mutex_;
  std::map<CudaStream*, std::shared_ptr<FakeStream>> streams_;
  std::vector<std::shared_ptr<FakeStream>> retired_;  // Destroyed streams, which may still run.
  std::map<CudaEvent*, std::shared_ptr<FakeEvent>> events_;
  std::unique_ptr<FakeCapture> capture_;  // The one that is under way, or null.
  uint64_t captures_ = 0;                 // How many were begun so far.
  std::map<CudaGraph*, std::shared_ptr<const FakeGraph>> graphs_;
  std::map<char*, size_t> device_blocks_;
  std::map<char*, size_t> pinned_blocks_;
  FakeAddresses addresses_;
  std::vector<std::string> violations_;
  std::deque<HostCopy> host_copies_;
  uint64_t host_copies_settled_ = 0;  // How many came before host_copies_.front().
};

}  // namespace dtrain::comm
