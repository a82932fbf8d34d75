#include "comm/nccl/staged_group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "comm/nccl/nccl_status.h"

namespace dtrain::comm {
namespace {

class NoRegistration final : public Registration {};

// The offset of `inner` in `outer`, or -1 if it lies outside.
int64_t OffsetIn(const Buffer& inner, const Buffer& outer) {
  const auto* const from = static_cast<const char*>(outer.data);
  const auto* const at = static_cast<const char*>(inner.data);
  return at >= from && at + inner.bytes <= from + outer.bytes ? at - from : -1;
}

Buffer OnHost(const Buffer& buffer, void* data) {
  return {data, buffer.bytes, buffer.dtype, {DeviceKind::kHost, 0}};
}

}  // namespace

// Page-locked memory that can grow.
class StagedGroup::Pinned {
 public:
  explicit Pinned(CudaApi* cuda) : cuda_(cuda) {}
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  ~Pinned() { Free(); }

  // Growing waits for `stream`, which may still copy from it.
  absl::StatusOr<void*> AtLeast(size_t bytes, CudaStream* stream) {
    if (bytes > bytes_) {
      DT_RETURN_IF_ERROR(
          CudaStatus(*cuda_, cuda_->StreamSynchronize(stream), "waiting to grow pinned memory"));
      Free();
      DT_RETURN_IF_ERROR(CudaStatus(*cuda_, cuda_->MallocPinned(&data_, bytes),
                                    absl::StrCat("cudaHostAlloc of ", bytes, " bytes")));
      bytes_ = bytes;
    }
    return data_;
  }

 private:
  void Free() {
    if (data_ != nullptr) {
      (void)cuda_->FreePinned(data_);
      data_ = nullptr;
      bytes_ = 0;
    }
  }
  CudaApi* const cuda_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

StagedGroup::StagedGroup(std::unique_ptr<Group> host, const StagedGroupOptions& options)
    : host_(std::move(host)),
      options_(options),
      whole_(std::make_unique<Pinned>(options.cuda)),
      apart_(std::make_unique<Pinned>(options.cuda)) {}

absl::StatusOr<std::unique_ptr<StagedGroup>> StagedGroup::Create(
    std::unique_ptr<Group> host, const StagedGroupOptions& options) {
  CudaApi& cuda = *options.cuda;
  std::unique_ptr<StagedGroup> made(new StagedGroup(std::move(host), options));
  DT_RETURN_IF_ERROR(CudaStatus(cuda, cuda.SetDevice(options.device), "cudaSetDevice"));
  DT_RETURN_IF_ERROR(CudaStatus(cuda, cuda.StreamCreate(&made->stream_, true), "cudaStreamCreate"));
  DT_RETURN_IF_ERROR(CudaStatus(cuda, cuda.EventCreate(&made->event_, false), "cudaEventCreate"));
  if (made->size() > 1) {
    made->worker_ = std::make_unique<Worker>(
        WorkerOptions{.name = "dt-staged", .queue_capacity = options.pending_max});
    made->worker_->Submit([device = options.device, &cuda] { (void)cuda.SetDevice(device); });
  }
  return made;
}

StagedGroup::~StagedGroup() {
  if (worker_ != nullptr) {
    host_->Abort("the staged group was destroyed");  // Collectives under way end at once.
    worker_.reset();
  }
  if (stream_ != nullptr) {
    (void)options_.cuda->StreamSynchronize(stream_);  // It may still use pinned memory.
  }
  if (event_ != nullptr) {
    (void)options_.cuda->EventDestroy(event_);
  }
  for (CudaEvent* const event : free_events_) {
    (void)options_.cuda->EventDestroy(event);
  }
  if (stream_ != nullptr) {
    (void)options_.cuda->StreamDestroy(stream_);
  }
}

std::string StagedGroup::transport() const {
  return size() == 1 ? "alone" : absl::StrCat("staged ", host_->transport());
}

absl::Status StagedGroup::Health() const {
  std::lock_guard lock(health_mutex_);
  return health_;
}

void StagedGroup::Break(const absl::Status& status) {
  std::lock_guard lock(health_mutex_);
  health_.Update(status);
}

void StagedGroup::Abort(const std::string& reason) {
  Break(absl::AbortedError(reason));
  host_->Abort(reason);
}

absl::Status StagedGroup::CheckBuffer(const Buffer& buffer) const {
  if (buffer.device.kind == DeviceKind::kCuda && buffer.device.index == options_.device) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "a buffer of a staged group is on %s %d; allowed: CUDA device %d",
      buffer.device.kind == DeviceKind::kCuda ? "CUDA device" : "host memory, index",
      buffer.device.index, options_.device));
}

absl::StatusOr<StagedGroup::ReadyEvent> StagedGroup::ReadyEventOf(CudaEvent* after) {
  if (after != nullptr) {
    return ReadyEvent{.event = after, .ours = false};
  }
  CudaApi& cuda = *options_.cuda;
  DT_RETURN_IF_ERROR(CudaStatus(cuda, cuda.SetDevice(options_.device), "cudaSetDevice"));
  ReadyEvent ready{.event = nullptr, .ours = true};
  {
    std::lock_guard lock(events_mutex_);
    if (!free_events_.empty()) {
      ready.event = free_events_.back();
      free_events_.pop_back();
    }
  }
  if (ready.event == nullptr) {
    DT_RETURN_IF_ERROR(CudaStatus(cuda, cuda.EventCreate(&ready.event, false), "cudaEventCreate"));
  }
  const absl::Status recorded =
      CudaStatus(cuda, cuda.EventRecord(ready.event, options_.compute_stream), "cudaEventRecord");
  if (!recorded.ok()) {
    std::lock_guard lock(events_mutex_);
    free_events_.push_back(ready.event);
    return recorded;
  }
  return ready;
}

absl::Status StagedGroup::Follow(const ReadyEvent& ready) {
  const CudaResult result = options_.cuda->StreamWaitEvent(stream_, ready.event);
  if (ready.ours) {  // The wait holds for this record, so another call may record the event again.
    std::lock_guard lock(events_mutex_);
    free_events_.push_back(ready.event);
  }
  return CudaStatus(*options_.cuda, result, "cudaStreamWaitEvent");
}

absl::Status StagedGroup::Copy(void* to, const void* from, size_t bytes) {
  return CudaStatus(*options_.cuda, options_.cuda->CopyAsync(to, from, bytes, stream_),
                    "copy of a staged collective");
}

absl::StatusOr<Work> StagedGroup::Start(Buffer input, Buffer output, CudaEvent* after,
                                        HostCall run) {
  DT_RETURN_IF_ERROR(CheckBuffer(input));
  if (output.data != nullptr) {
    DT_RETURN_IF_ERROR(CheckBuffer(output));
  }
  std::lock_guard lock(start_mutex_);
  DT_RETURN_IF_ERROR(Health());
  DT_ASSIGN_OR_RETURN(const ReadyEvent ready, ReadyEventOf(after));
  if (worker_ == nullptr) {  // The part of the only rank is the result.
    DT_RETURN_IF_ERROR(Follow(ready));
    if (output.data != nullptr && output.data != input.data) {
      DT_RETURN_IF_ERROR(Copy(output.data, input.data, output.bytes));
    }
    return Work();
  }
  auto state = std::make_shared<NcclWork>();
  worker_->Submit([this, input, output, ready, run = std::move(run), state] {
    absl::Status status = Health();
    if (status.ok()) {
      status = Exchange(input, output, ready, run);
      Break(status);
    } else {
      Follow(ready).IgnoreError();  // This gives the event back.
    }
    state->Finish(status, 0);
  });
  return Work(state);
}

// Runs on the worker's thread. The wait for the call's event is queued here and not by the call:
// the stream would wait for the events of several calls before the copies of the first.
absl::Status StagedGroup::Exchange(Buffer input, Buffer output, const ReadyEvent& ready,
                                   const HostCall& run) {
  CudaApi& cuda = *options_.cuda;
  DT_RETURN_IF_ERROR(Follow(ready));
  const Buffer result = output.data == nullptr ? input : output;
  const int64_t result_in_input = OffsetIn(result, input);
  const int64_t input_in_result = OffsetIn(input, result);
  // The larger of two that overlap holds both.
  const Buffer& whole = result_in_input >= 0 ? input : result;
  DT_ASSIGN_OR_RETURN(void* const staged, whole_->AtLeast(whole.bytes, stream_));
  char* const base = static_cast<char*>(staged);
  Buffer host_input = OnHost(input, base);
  Buffer host_result = OnHost(result, base);
  if (result_in_input >= 0) {
    host_result.data = base + result_in_input;
  } else if (input_in_result >= 0) {
    host_input.data = base + input_in_result;
  } else {
    DT_ASSIGN_OR_RETURN(host_input.data, apart_->AtLeast(input.bytes, stream_));
  }
  DT_RETURN_IF_ERROR(Copy(host_input.data, input.data, input.bytes));
  DT_RETURN_IF_ERROR(
      CudaStatus(cuda, cuda.StreamSynchronize(stream_), "waiting for a staged collective"));
  DT_ASSIGN_OR_RETURN(const Work work, run(*host_, host_input, host_result));
  DT_RETURN_IF_ERROR(work.Wait());
  return Copy(result.data, host_result.data, result.bytes);
}

absl::Status StagedGroup::Then(std::function<absl::Status(CudaStream* stream)> launch) {
  std::lock_guard lock(start_mutex_);
  DT_RETURN_IF_ERROR(Health());
  if (worker_ == nullptr) {
    CudaApi& cuda = *options_.cuda;
    DT_RETURN_IF_ERROR(CudaStatus(cuda, cuda.SetDevice(options_.device), "cudaSetDevice"));
    return launch(stream_);
  }
  worker_->Submit([this, launch = std::move(launch)] {
    if (Health().ok()) {
      Break(launch(stream_));
    }
  });
  return absl::OkStatus();
}

// Blocks until everything that was started is on the stream.
absl::Status StagedGroup::AwaitWorker() {
  if (worker_ != nullptr) {
    auto reached = std::make_shared<NcclWork>();
    worker_->Submit([reached] { reached->Finish(absl::OkStatus(), 0); });
    DT_RETURN_IF_ERROR(reached->Wait(Deadline::Infinite()));  // Each exchange has its own limit.
  }
  return Health();
}

absl::Status StagedGroup::Await(CudaEvent* event, CudaStream* stream) {
  std::lock_guard lock(start_mutex_);
  CudaApi& cuda = *options_.cuda;
  DT_RETURN_IF_ERROR(AwaitWorker());
  // A null stream belongs to the thread's device.
  DT_RETURN_IF_ERROR(CudaStatus(cuda, cuda.SetDevice(options_.device), "cudaSetDevice"));
  return CudaStatus(cuda, cuda.StreamWaitEvent(stream, event), "cudaStreamWaitEvent");
}

absl::Status StagedGroup::JoinStream(CudaStream* stream) {
  std::lock_guard lock(start_mutex_);
  CudaApi& cuda = *options_.cuda;
  DT_RETURN_IF_ERROR(AwaitWorker());
  DT_RETURN_IF_ERROR(CudaStatus(cuda, cuda.SetDevice(options_.device), "cudaSetDevice"));
  DT_RETURN_IF_ERROR(CudaStatus(cuda, cuda.EventRecord(event_, stream_), "cudaEventRecord"));
  return CudaStatus(cuda, cuda.StreamWaitEvent(stream, event_), "cudaStreamWaitEvent");
}

absl::StatusOr<std::unique_ptr<Registration>> StagedGroup::Register(
    std::shared_ptr<SymmetricBuffer> /*buffer*/) {
  return absl::InvalidArgumentError(
      "a SymmetricBuffer is host memory; a staged group takes device memory: RegisterDevice");
}

absl::StatusOr<std::unique_ptr<Registration>> StagedGroup::RegisterDevice(void* /*data*/,
                                                                          size_t /*bytes*/) {
  return std::make_unique<NoRegistration>();  // Copies need no registration.
}

absl::StatusOr<std::unique_ptr<DeviceGroup>> StagedGroup::SplitGroup(Store* store, int color,
                                                                     int key,
                                                                     const std::string& /*name*/) {
  std::lock_guard lock(start_mutex_);
  DT_RETURN_IF_ERROR(AwaitWorker());  // The worker uses the host group while it has work.
  DT_ASSIGN_OR_RETURN(auto host, SplitHostGroup(*host_, store, color, key));
  if (host == nullptr) {
    return nullptr;  // The colour is negative.
  }
  return Create(std::move(host), options_);
}

absl::StatusOr<Work> StagedGroup::AllReduce(Buffer buffer, ReduceOp op,
                                            const CollectiveOptions& options) {
  return Start(buffer, {.data = nullptr}, options.after,
               [op, options](Group& host, Buffer input, Buffer) {
                 return host.AllReduce(input, op, options);
               });
}

absl::StatusOr<Work> StagedGroup::ReduceScatter(Buffer input, Buffer output, ReduceOp op,
                                                const CollectiveOptions& options) {
  return Start(input, output, options.after, [op, options](Group& host, Buffer whole, Buffer part) {
    return host.ReduceScatter(whole, part, op, options);
  });
}

absl::Status StagedGroup::ReduceScatterCoalesced(absl::Span<const ReduceScatterCall> calls,
                                                 ReduceOp op) {
  for (const ReduceScatterCall& call : calls) {
    DT_RETURN_IF_ERROR(ReduceScatter(call.input, call.output, op, call.options).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<Work> StagedGroup::AllGather(Buffer input, Buffer output,
                                            const CollectiveOptions& options) {
  return Start(input, output, options.after, [options](Group& host, Buffer part, Buffer whole) {
    return host.AllGather(part, whole, options);
  });
}

absl::StatusOr<Work> StagedGroup::Broadcast(Buffer buffer, int root,
                                            const CollectiveOptions& options) {
  return Start(buffer, {.data = nullptr}, options.after,
               [root, options](Group& host, Buffer input, Buffer) {
                 return host.Broadcast(input, root, options);
               });
}

absl::StatusOr<Work> StagedGroup::AllToAll(Buffer input, Buffer output,
                                           const CollectiveOptions& options) {
  return Start(input, output, options.after, [options](Group& host, Buffer from, Buffer to) {
    return host.AllToAll(from, to, options);
  });
}

absl::StatusOr<Work> StagedGroup::Send(Buffer /*buffer*/, int /*peer*/,
                                       const CollectiveOptions& /*options*/) {
  return absl::UnimplementedError("send on a staged group; use a collective, or NCCL");
}

absl::StatusOr<Work> StagedGroup::Receive(Buffer /*buffer*/, int /*peer*/,
                                          const CollectiveOptions& /*options*/) {
  return absl::UnimplementedError("receive on a staged group; use a collective, or NCCL");
}

absl::Status StagedGroup::Barrier(Deadline deadline) {
  DT_RETURN_IF_ERROR(JoinStream(options_.compute_stream));
  return host_->Barrier(deadline);
}

}  // namespace dtrain::comm
