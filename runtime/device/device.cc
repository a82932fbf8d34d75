#include "runtime/device/device.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/nccl/nccl_status.h"

namespace dtrain {
namespace {

constexpr int kSpins =
    64;  // Questions before the first sleep: what is nearly done is not slept on.
constexpr absl::Duration kPoll = absl::Microseconds(50);

}  // namespace

absl::Status Device::Check(comm::CudaResult result, absl::string_view what) const {
  return comm::CudaStatus(*parts_.api, result, what);
}

absl::Status Device::Copy(void* to, const void* from, size_t bytes) const {
  return Check(parts_.api->CopyAsync(to, from, bytes, parts_.compute_stream), "cudaMemcpyAsync");
}

absl::Status Device::Zero(void* data, size_t bytes) const {
  return Check(parts_.api->FillAsync(data, 0, bytes, parts_.compute_stream), "cudaMemsetAsync");
}

absl::Status Device::Synchronize() const {
  return Check(parts_.api->StreamSynchronize(parts_.compute_stream), "cudaStreamSynchronize");
}

void Device::EmptyCache() const {
  if (parts_.empty_cache) {
    parts_.empty_cache();
  }
}

comm::CudaResult WithCacheEmptied(const Device& device,
                                  absl::FunctionRef<comm::CudaResult()> take) {
  const comm::CudaResult result = take();
  if (result != comm::CudaResult::kOutOfMemory) {
    return result;
  }
  device.EmptyCache();
  return take();
}

absl::Status OutOfDeviceMemory(const Device& device, size_t bytes, absl::string_view what,
                               comm::CudaResult result) {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  (void)device.api().MemoryInfo(&free_bytes, &total_bytes);
  return absl::ResourceExhaustedError(absl::StrFormat(
      "%d bytes for %s on GPU %d, where %d of %d are free: %s; a higher zero_optimization.stage, "
      "more ranks or a smaller micro-batch take less",
      bytes, what, device.place().index, free_bytes, total_bytes,
      device.api().ErrorString(result)));
}

absl::StatusOr<std::shared_ptr<DeviceMemory>> DeviceMemory::Create(const Device& device,
                                                                   size_t bytes,
                                                                   absl::string_view what) {
  comm::CudaApi& api = device.api();
  void* data = nullptr;
  const comm::CudaResult result =
      WithCacheEmptied(device, [&] { return api.MallocDevice(&data, std::max<size_t>(1, bytes)); });
  if (result != comm::CudaResult::kSuccess) {
    return OutOfDeviceMemory(device, bytes, what, result);
  }
  std::shared_ptr<DeviceMemory> memory(new DeviceMemory(&api, data, bytes));
  DT_RETURN_IF_ERROR(device.Zero(data, bytes));
  return memory;
}

DeviceMemory::~DeviceMemory() { (void)api_->FreeDevice(data_); }

absl::StatusOr<std::unique_ptr<PinnedMemory>> PinnedMemory::Create(const Device& device,
                                                                   size_t bytes) {
  void* data = nullptr;
  DT_RETURN_IF_ERROR(
      device.Check(device.api().MallocPinned(&data, std::max<size_t>(1, bytes)),
                   absl::StrCat("cudaHostAlloc of ", bytes, " bytes of pinned host memory")));
  return std::unique_ptr<PinnedMemory>(new PinnedMemory(&device.api(), data));
}

PinnedMemory::~PinnedMemory() { (void)api_->FreePinned(data_); }

absl::StatusOr<std::unique_ptr<DeviceEvent>> DeviceEvent::Create(const Device& device,
                                                                 bool timing) {
  comm::CudaEvent* event = nullptr;
  DT_RETURN_IF_ERROR(device.Check(device.api().EventCreate(&event, timing), "cudaEventCreate"));
  return std::unique_ptr<DeviceEvent>(new DeviceEvent(device, event));
}

DeviceEvent::~DeviceEvent() { (void)device_.api().EventDestroy(event_); }

absl::Status DeviceEvent::Record() {
  return device_.Check(device_.api().EventRecord(event_, device_.stream()), "cudaEventRecord");
}

absl::Status DeviceEvent::RecordInGraph() {
  return device_.Check(device_.api().EventRecordInGraph(event_, device_.stream()),
                       "cudaEventRecordWithFlags");
}

bool DeviceEvent::Done() const {
  return device_.api().EventQuery(event_) != comm::CudaResult::kNotReady;
}

absl::Status DeviceEvent::Wait(Deadline deadline) const {
  for (int64_t asked = 0;; ++asked) {
    const comm::CudaResult result = device_.api().EventQuery(event_);
    if (result != comm::CudaResult::kNotReady) {
      return device_.Check(result, "cudaEventQuery");
    }
    if (deadline.Expired()) {
      return absl::DeadlineExceededError(
          absl::StrFormat("GPU %d did not finish a step in time", device_.place().index));
    }
    if (asked >= kSpins) {
      Clock::Real().Sleep(kPoll);
    }
  }
}

double DeviceEvent::SecondsSince(const DeviceEvent& start) const {
  float milliseconds = 0;
  (void)device_.api().ElapsedMs(&milliseconds, start.event_, event_);
  return static_cast<double>(milliseconds) * 1e-3;
}

absl::StatusOr<std::unique_ptr<DeviceGraph>> DeviceGraph::Capture(
    const Device& device, absl::FunctionRef<absl::Status()> queue) {
  comm::CudaApi& api = device.api();
  DT_RETURN_IF_ERROR(
      device.Check(api.StreamBeginCapture(device.stream()), "cudaStreamBeginCapture"));
  const absl::Status queued = queue();
  comm::CudaGraph* graph = nullptr;
  const absl::Status ended =
      device.Check(api.StreamEndCapture(device.stream(), &graph), "cudaStreamEndCapture");
  if (ended.ok()) {
    std::unique_ptr<DeviceGraph> made(new DeviceGraph(device, graph));
    DT_RETURN_IF_ERROR(queued);
    return made;
  }
  DT_RETURN_IF_ERROR(queued);  // Says more.
  return ended;
}

DeviceGraph::~DeviceGraph() { (void)device_.api().GraphDestroy(graph_); }

absl::Status DeviceGraph::Launch() const {
  return device_.Check(device_.api().GraphLaunch(graph_, device_.stream()), "cudaGraphLaunch");
}

}  // namespace dtrain
