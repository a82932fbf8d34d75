#include "comm/nccl/fake/fake_cuda.h"

#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/nccl/fake/fake_capture.h"
#include "comm/nccl/fake/fake_stream.h"

namespace dtrain::comm {
namespace {

constexpr auto kInvalidHandle = static_cast<CudaResult>(400);  // cudaErrorInvalidResourceHandle.
constexpr auto kOutOfMemory = static_cast<CudaResult>(2);      // cudaErrorMemoryAllocation.
constexpr auto kInvalidDevice = static_cast<CudaResult>(101);
constexpr auto kLaunchFailure = static_cast<CudaResult>(719);

// The device that a thread chose, and the fake to which it belongs.
struct ChosenDevice {
  uint64_t fake = 0;
  int device = 0;
};
thread_local ChosenDevice chosen_device;

std::atomic<uint64_t> fakes_made{0};

}  // namespace

FakeCuda::FakeCuda(int devices) : number_(++fakes_made), devices_(devices) {
  streams_.emplace(nullptr, std::make_shared<FakeStream>(0));
  auto host = std::make_shared<FakeStream>(0, FakeStream::Kind::kCaller);
  host_stream_ = reinterpret_cast<CudaStream*>(host.get());
  streams_.emplace(host_stream_, std::move(host));
}

FakeCuda::~FakeCuda() {
  stopping_ = true;
  capture_.reset();
  graphs_.clear();
  streams_.clear();  // This joins the threads, whose operations see stopping_ and end.
  retired_.clear();
  for (auto& [data, bytes] : device_blocks_) {
    std::free(data);
  }
  for (auto& [data, bytes] : pinned_blocks_) {
    std::free(data);
  }
}

std::string FakeCuda::Description() { return "fake CUDA"; }

std::string FakeCuda::ErrorString(CudaResult result) {
  switch (result) {
    case CudaResult::kSuccess:
      return "cudaSuccess: no error";
    case CudaResult::kInvalidValue:
      return "cudaErrorInvalidValue: invalid argument";
    case CudaResult::kNotReady:
      return "cudaErrorNotReady: device not ready";
    default:
      return FakeCaptureError(result);
  }
}

CudaResult FakeCuda::DeviceCount(int* count) {
  *count = devices_;
  return CudaResult::kSuccess;
}
CudaResult FakeCuda::DeviceFacts(int device, CudaDeviceFacts* facts) {
  if (device < 0 || device >= devices_) {
    return kInvalidDevice;
  }
  facts->name = name_;
  facts->uuid.fill(static_cast<char>(device + 1));
  facts->compute_capability = 90;
  return CudaResult::kSuccess;
}
CudaResult FakeCuda::SetDevice(int device) {
  if (device < 0 || device >= devices_) {
    return kInvalidDevice;
  }
  chosen_device = {.fake = number_, .device = device};
  return CudaResult::kSuccess;
}
int FakeCuda::current_device() const {
  return chosen_device.fake == number_ ? chosen_device.device : 0;
}
CudaResult FakeCuda::MemoryInfo(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = free_bytes_;
  *total_bytes = size_t{1} << 30;
  return CudaResult::kSuccess;
}

CudaResult FakeCuda::StreamCreate(CudaStream** stream, bool /*high_priority*/) {
  auto made = std::make_shared<FakeStream>(current_device());
  std::lock_guard lock(mutex_);
  *stream = reinterpret_cast<CudaStream*>(made.get());
  streams_.emplace(*stream, std::move(made));
  return CudaResult::kSuccess;
}

CudaResult FakeCuda::StreamDestroy(CudaStream* stream) {
  std::lock_guard lock(mutex_);
  const auto found = streams_.find(stream);
  if (stream == nullptr || stream == host_stream_ || found == streams_.end()) {
    violations_.push_back("cudaStreamDestroy of a stream that does not exist");
    return kInvalidHandle;
  }
  retired_.push_back(std::move(found->second));  // Queued work still runs, in CUDA too.
  streams_.erase(found);
  return CudaResult::kSuccess;
}

CudaResult FakeCuda::StreamSynchronize(CudaStream* stream) {
  const auto found = Find(stream);
  if (found == nullptr) {
    return Violation("cudaStreamSynchronize of a stream that does not exist");
  }
  if (const CudaResult forbidden = Forbid(); forbidden != CudaResult::kSuccess) {
    return forbidden;
  }
  ++synchronizations_;
  found->Synchronize();
  if (stream == host_stream_) {
    std::lock_guard lock(mutex_);
    Settle(host_copies_settled_ + host_copies_.size());
  }
  return CudaResult::kSuccess;
}

CudaResult FakeCuda::StreamWaitEvent(CudaStream* stream, CudaEvent* event) {
  auto found = Find(event);
  if (found == nullptr) {
    return Violation("cudaStreamWaitEvent on an event that does not exist");
  }
  std::unique_lock lock(found->mutex);
  const uint64_t target = found->recorded;
  const uint64_t capture = found->capture;
  const FakeCapture::Clock captured = found->captured;
  waits_inside_graphs_ += found->in_graph ? 1 : 0;
  lock.unlock();
  {
    std::lock_guard mine(mutex_);
    if (capture_ != nullptr && capture == captures_) {
      capture_->Wait(stream, captured);
      return CudaResult::kSuccess;
    }
    if (capture_ != nullptr && capture_->holds(stream) && target > 0) {
      capture_->Spoil();
      return kCaptureIsolation;
    }
  }
  if (capture != 0) {
    return kCapturedEvent;  // The work that it stands for ended with its capture.
  }
  return Run(stream, [this, found, target] {
    std::unique_lock wait(found->mutex);
    while (found->done < target && !stopping_) {
      found->changed.wait_for(wait, std::chrono::milliseconds(2));
    }
  });
}

CudaResult FakeCuda::EventCreate(CudaEvent** event, bool /*timing*/) {
  auto made = std::make_shared<FakeEvent>();
  made->device = current_device();
  std::lock_guard lock(mutex_);
  *event = reinterpret_cast<CudaEvent*>(made.get());
  events_.emplace(*event, std::move(made));
  return CudaResult::kSuccess;
}

CudaResult FakeCuda::EventDestroy(CudaEvent* event) {
  std::lock_guard lock(mutex_);
  for (const auto& [graph, made] : graphs_) {
    for (const auto& recorded : made->events) {
      if (reinterpret_cast<CudaEvent*>(recorded.get()) == event) {
        violations_.push_back("cudaEventDestroy of an event that a graph records");
      }
    }
  }
  if (events_.erase(event) == 0) {
    violations_.push_back("cudaEventDestroy of an event that does not exist");
    return kInvalidHandle;
  }
  return CudaResult::kSuccess;
}

CudaResult FakeCuda::EventRecord(CudaEvent* event, CudaStream* stream) {
  auto found = Find(event);
  if (found == nullptr) {
    return Violation("cudaEventRecord of an event that does not exist");
  }
  if (!IsOnDevice(stream, found->device)) {
    return Violation("cudaEventRecord of an event on a stream of another device");
  }
  uint64_t host_copies = 0;
  {
    std::lock_guard lock(mutex_);
    std::lock_guard recorded(found->mutex);
    found->capture = 0;
    if (capture_ != nullptr && capture_->holds(stream)) {
      found->capture = captures_;
      found->captured = capture_->Now(stream);
      return CudaResult::kSuccess;
    }
    if (stream == host_stream_) {
      host_copies = host_copies_settled_ + host_copies_.size();
    }
  }
  std::unique_lock lock(found->mutex);
  const uint64_t target = ++found->recorded;
  found->in_graph = false;
  found->host_copies = host_copies;
  lock.unlock();
  return Run(stream, [found, target] {
    std::lock_guard done(found->mutex);
    found->done = target;
    found->done_at = std::chrono::steady_clock::now();
    found->changed.notify_all();
  });
}

bool FakeCuda::IsOnDevice(CudaStream* stream, int device) {
  if (stream == host_stream_) {
    return true;  // It stands for a stream of any device.
  }
  if (stream == nullptr) {
    return current_device() == device;
  }
  const auto found = Find(stream);
  return found == nullptr || found->device() == device;
}

CudaResult FakeCuda::EventQuery(CudaEvent* event) {
  ++event_queries_;
  const auto found = Find(event);
  if (found == nullptr) {
    return Violation("cudaEventQuery of an event that does not exist");
  }
  if (const CudaResult forbidden = Forbid(); forbidden != CudaResult::kSuccess) {
    return forbidden;
  }
  std::unique_lock lock(found->mutex);
  if (const uint64_t capture = found->capture; capture != 0) {
    lock.unlock();
    return QueryCaptured(capture);
  }
  if (hangs_ || found->done != found->recorded) {
    return CudaResult::kNotReady;
  }
  const uint64_t host_copies = found->host_copies;
  lock.unlock();
  std::lock_guard mine(mutex_);
  Settle(host_copies);
  return CudaResult::kSuccess;
}

CudaResult FakeCuda::ElapsedMs(float* milliseconds, CudaEvent* start, CudaEvent* end) {
  const auto first = Find(start);
  const auto last = Find(end);
  if (first == nullptr || last == nullptr) {
    return Violation("cudaEventElapsedTime of an event that does not exist");
  }
  std::scoped_lock lock(first->mutex, last->mutex);
  *milliseconds = std::chrono::duration<float, std::milli>(last->done_at - first->done_at).count();
  return CudaResult::kSuccess;
}

void FakeCuda::Settle(uint64_t host_copies) {
  for (; host_copies_settled_ < host_copies; ++host_copies_settled_) {
    const HostCopy& copy = host_copies_.front();
    if (copy.to != nullptr) {
      std::memcpy(copy.to, copy.bytes.data(), copy.bytes.size());
    } else if (std::memcmp(copy.from, copy.bytes.data(), copy.bytes.size()) != 0) {
      violations_.push_back(
          "pinned memory was changed before the copy from it was known to be done");
    }
    host_copies_.pop_front();
  }
}

void FakeCuda::CopyOnHostStream(void* to, const void* from, size_t bytes) {
  std::lock_guard lock(mutex_);
  const auto* const first = static_cast<const char*>(from);
  HostCopy copy{.from = from, .bytes = std::vector<char>(first, first + bytes)};
  if (Holds(pinned_blocks_, to, bytes)) {
    copy.to = to;
  } else {
    std::memcpy(to, from, bytes);
  }
  if (copy.to != nullptr || Holds(pinned_blocks_, from, bytes)) {
    host_copies_.push_back(std::move(copy));
  }
}

CudaResult FakeCuda::CopyAsync(void* to, const void* from, size_t bytes, CudaStream* stream) {
  if (stream == host_stream_) {
    return Enqueue(stream, [=, this] { CopyOnHostStream(to, from, bytes); });
  }
  if (std::unique_lock lock(mutex_);
      Holds(pinned_blocks_, to, bytes) || Holds(pinned_blocks_, from, bytes)) {
    if (copies_left_-- <= 0) {
      return kLaunchFailure;
    }
  }
  return Enqueue(stream, [=] { std::memcpy(to, from, bytes); });
}
CudaResult FakeCuda::FillAsync(void* data, uint8_t value, size_t bytes, CudaStream* stream) {
  return Enqueue(stream, [=] { std::memset(data, value, bytes); });
}

CudaResult FakeCuda::Malloc(std::map<char*, size_t>& blocks, void** data, size_t bytes) {
  if (const CudaResult forbidden = Forbid(); forbidden != CudaResult::kSuccess) {
    return forbidden;
  }
  *data = std::malloc(bytes);
  if (*data == nullptr) {
    return kOutOfMemory;
  }
  std::lock_guard lock(mutex_);
  blocks.emplace(static_cast<char*>(*data), bytes);
  return CudaResult::kSuccess;
}

CudaResult FakeCuda::Free(std::map<char*, size_t>& blocks, void* data, const char* what) {
  if (const CudaResult forbidden = Forbid(); forbidden != CudaResult::kSuccess) {
    return forbidden;
  }
  std::lock_guard lock(mutex_);
  if (blocks.erase(static_cast<char*>(data)) == 0) {
    violations_.push_back(absl::StrCat(what, " of memory that it did not give"));
    return CudaResult::kInvalidValue;
  }
  std::free(data);
  return CudaResult::kSuccess;
}

CudaResult FakeCuda::MallocDevice(void** data, size_t bytes) {
  return Malloc(device_blocks_, data, bytes);
}
CudaResult FakeCuda::FreeDevice(void* data) {
  if (std::lock_guard lock(mutex_); capture_ != nullptr) {
    capture_->Spoil();  // Freeing waits for the device, whichever thread captures.
    return kCaptureUnsupported;
  }
  return Free(device_blocks_, data, "cudaFree");
}
CudaResult FakeCuda::MallocPinned(void** data, size_t bytes) {
  return Malloc(pinned_blocks_, data, bytes);
}
CudaResult FakeCuda::FreePinned(void* data) { return Free(pinned_blocks_, data, "cudaFreeHost"); }

CudaResult FakeCuda::MemoryGranularity(size_t* bytes) {
  *bytes = FakeAddresses::kGranularity;
  return CudaResult::kSuccess;
}
CudaResult FakeCuda::ReserveAddresses(void** data, size_t bytes) {
  return CheckAllowed(addresses_.Reserve(data, bytes), "cuMemAddressReserve");
}
CudaResult FakeCuda::FreeAddresses(void* data, size_t bytes) {
  return CheckAllowed(addresses_.Free(data, bytes), "cuMemAddressFree");
}
CudaResult FakeCuda::CreateMemory(CudaMemory** memory, size_t bytes) {
  return CheckAllowed(addresses_.Create(memory, bytes), "cuMemCreate");
}
CudaResult FakeCuda::DestroyMemory(CudaMemory* memory) {
  return CheckAllowed(addresses_.Destroy(memory), "cuMemRelease");
}
CudaResult FakeCuda::MapMemory(void* data, size_t bytes, CudaMemory* memory) {
  return CheckAllowed(addresses_.Map(data, bytes, memory), "cuMemMap");
}
CudaResult FakeCuda::UnmapMemory(void* data, size_t bytes) {
  return CheckAllowed(addresses_.Unmap(data, bytes), "cuMemUnmap");
}

CudaResult FakeCuda::CheckAllowed(CudaResult result, const char* what) {
  if (result == CudaResult::kInvalidValue) {
    Violation(absl::StrCat(what, " of a range or memory that it does not allow"));
  }
  return result;
}

CudaResult FakeCuda::Enqueue(CudaStream* stream, std::function<void()> operation) {
  if (Record(stream, operation)) {
    return CudaResult::kSuccess;
  }
  ++queued_;
  return Run(stream, std::move(operation));
}

CudaResult FakeCuda::Run(CudaStream* stream, std::function<void()> operation) {
  const auto found = Find(stream);
  if (found == nullptr) {
    return Violation("work queued on a stream that does not exist");
  }
  const int64_t delay_us = stream == host_stream_ ? 0 : delay_us_.load();
  if (delay_us == 0) {
    found->Push(std::move(operation));
  } else {
    found->Push([delay_us, run = std::move(operation)] {
      std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
      run();
    });
  }
  return CudaResult::kSuccess;
}

bool FakeCuda::Holds(const std::map<char*, size_t>& blocks, const void* data, size_t bytes) {
  const char* const first = static_cast<const char*>(data);
  auto after = blocks.upper_bound(const_cast<char*>(first));
  if (after == blocks.begin()) {
    return false;
  }
  --after;
  return first + bytes <= after->first + after->second;
}

bool FakeCuda::IsDeviceMemory(const void* data, size_t bytes) const {
  std::lock_guard lock(mutex_);
  return Holds(device_blocks_, data, bytes) || addresses_.IsMapped(data, bytes);
}

std::vector<std::string> FakeCuda::violations() const {
  std::lock_guard lock(mutex_);
  return violations_;
}

int FakeCuda::live_handles() const {
  std::lock_guard lock(mutex_);
  return static_cast<int>(streams_.size() - 2 + events_.size() + graphs_.size() +
                          device_blocks_.size() + pinned_blocks_.size()) +
         addresses_.live_handles();
}

size_t FakeCuda::pinned_bytes() const {
  std::lock_guard lock(mutex_);
  size_t bytes = 0;
  for (const auto& [data, block] : pinned_blocks_) {
    bytes += block;
  }
  return bytes;
}

std::shared_ptr<FakeStream> FakeCuda::Find(CudaStream* stream) {
  std::lock_guard lock(mutex_);
  const auto found = streams_.find(stream);
  return found == streams_.end() ? nullptr : found->second;
}

std::shared_ptr<FakeEvent> FakeCuda::Find(CudaEvent* event) {
  std::lock_guard lock(mutex_);
  const auto found = events_.find(event);
  return found == events_.end() ? nullptr : found->second;
}

CudaResult FakeCuda::Violation(const std::string& text) {
  std::lock_guard lock(mutex_);
  violations_.push_back(text);
  return kInvalidHandle;
}

}  // namespace dtrain::comm
