// A CudaApi on the host: each stream is a thread that runs its operations in order, device memory
// is host memory that is remembered, so that a collective on a wrong pointer is noticed.
//
// Thread-safe. Make it after fork: threads do not cross it. The destructor ends operations that
// hang and joins every stream.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/nccl/cuda_api.h"

namespace dtrain::comm {

class FakeStream;
struct FakeEvent;

class FakeCuda final : public CudaApi {
 public:
  explicit FakeCuda(int devices = 1);
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;
  ~FakeCuda() override;

  std::string Description() override;
  std::string ErrorString(CudaResult result) override;
  CudaResult DeviceCount(int* count) override;
  CudaResult SetDevice(int device) override;
  CudaResult MemoryInfo(size_t* free_bytes, size_t* total_bytes) override;
  CudaResult StreamCreate(CudaStream** stream, bool high_priority) override;
  CudaResult StreamDestroy(CudaStream* stream) override;
  CudaResult StreamSynchronize(CudaStream* stream) override;
  CudaResult StreamWaitEvent(CudaStream* stream, CudaEvent* event) override;
  CudaResult EventCreate(CudaEvent** event, bool timing) override;
  CudaResult EventDestroy(CudaEvent* event) override;
  CudaResult EventRecord(CudaEvent* event, CudaStream* stream) override;
  CudaResult EventQuery(CudaEvent* event) override;
  CudaResult ElapsedMs(float* milliseconds, CudaEvent* start, CudaEvent* end) override;
  CudaResult CopyAsync(void* to, const void* from, size_t bytes, CudaStream* stream) override;
  CudaResult FillAsync(void* data, uint8_t value, size_t bytes, CudaStream* stream) override;
  CudaResult MallocDevice(void** data, size_t bytes) override;
  CudaResult FreeDevice(void* data) override;
  CudaResult MallocPinned(void** data, size_t bytes) override;
  CudaResult FreePinned(void* data) override;

  // Queues `operation` on `stream` (null: the default stream).
  CudaResult Enqueue(CudaStream* stream, std::function<void()> operation);
  // Whether [data, data + bytes) lies inside one MallocDevice block.
  bool IsDeviceMemory(const void* data, size_t bytes) const;
  // True from the moment of destruction: operations that wait must end.
  const std::atomic<bool>& stopping() const { return stopping_; }
  // Calls that real CUDA would punish: unknown streams or events, double frees.
  std::vector<std::string> violations() const;
  // Device and pinned blocks, streams and events not yet freed.
  int live_handles() const;

 private:
  std::shared_ptr<FakeStream> Find(CudaStream* stream);
  std::shared_ptr<FakeEvent> Find(CudaEvent* event);
  CudaResult Violation(const std::string& text);
  CudaResult Malloc(std::map<char*, size_t>& blocks, void** data, size_t bytes);
  CudaResult Free(std::map<char*, size_t>& blocks, void* data, const char* what);

  const int devices_;
  std::atomic<bool> stopping_{false};
  mutable std::mutex mutex_;
  std::map<CudaStream*, std::shared_ptr<FakeStream>> streams_;
  std::vector<std::shared_ptr<FakeStream>> retired_;  // Destroyed while they may still run.
  std::map<CudaEvent*, std::shared_ptr<FakeEvent>> events_;
  std::map<char*, size_t> device_blocks_;
  std::map<char*, size_t> pinned_blocks_;
  std::vector<std::string> violations_;
};

}  // namespace dtrain::comm
