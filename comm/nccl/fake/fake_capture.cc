// FakeCuda's captures: the calls that are allowed during one, and its result.
#include "comm/nccl/fake/fake_capture.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/nccl/fake/fake_cuda.h"
#include "comm/nccl/fake/fake_stream.h"

namespace dtrain::comm {

std::string FakeCaptureError(CudaResult result) {
  static const std::map<CudaResult, std::string> texts = {
      {kCaptureUnsupported,
       "cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing"},
      {kCaptureInvalidated,
       "cudaErrorStreamCaptureInvalidated: operation failed due to a previous error during "
       "capture"},
      {kCaptureUnjoined, "cudaErrorStreamCaptureUnjoined: capturing stream has unjoined work"},
      {kCaptureIsolation,
       "cudaErrorStreamCaptureIsolation: dependency created on uncaptured work in another stream"},
      {kCapturedEvent,
       "cudaErrorCapturedEvent: operation not permitted on an event last recorded in a capturing "
       "stream"},
  };
  const auto found = texts.find(result);
  return found != texts.end() ? found->second
                              : absl::StrCat("fake CUDA error ", static_cast<int>(result));
}

CudaResult FakeCuda::StreamBeginCapture(CudaStream* stream) {
  const auto found = Find(stream);
  std::lock_guard lock(mutex_);
  if (found == nullptr || stream == nullptr || capture_ != nullptr) {
    return kCaptureUnsupported;
  }
  capture_ = std::make_unique<FakeCapture>(stream);
  ++captures_;
  return CudaResult::kSuccess;
}

CudaResult FakeCuda::StreamEndCapture(CudaStream* stream, CudaGraph** graph) {
  // It is dropped after the lock, because operations may own memory whose freeing takes the lock.
  std::unique_ptr<FakeCapture> capture;
  std::lock_guard lock(mutex_);
  if (capture_ == nullptr || capture_->origin() != stream || !capture_->is_mine()) {
    return CudaResult::kInvalidValue;
  }
  capture = std::move(capture_);
  if (capture->spoilt()) {
    return kCaptureInvalidated;
  }
  if (!capture->joined()) {
    return kCaptureUnjoined;
  }
  auto made = std::make_shared<const FakeGraph>(capture->Take());
  *graph = reinterpret_cast<CudaGraph*>(const_cast<FakeGraph*>(made.get()));
  graphs_.emplace(*graph, std::move(made));
  return CudaResult::kSuccess;
}

CudaResult FakeCuda::StreamIsCapturing(CudaStream* stream, bool* capturing) {
  std::lock_guard lock(mutex_);
  *capturing = capture_ != nullptr && capture_->holds(stream);
  return CudaResult::kSuccess;
}

CudaResult FakeCuda::GraphLaunch(CudaGraph* graph, CudaStream* stream) {
  std::unique_lock lock(mutex_);
  const auto found = graphs_.find(graph);
  if (found == graphs_.end()) {
    lock.unlock();
    return Violation("cudaGraphLaunch of a graph that does not exist");
  }
  const auto launched = found->second;
  lock.unlock();
  for (const auto& event : launched->events) {
    std::lock_guard recorded(event->mutex);
    ++event->recorded;
    event->capture = 0;
    event->in_graph = true;
  }
  ++graph_launches_;
  return Enqueue(stream, [launched] {
    for (const auto& node : launched->nodes) {
      node();
    }
  });
}

CudaResult FakeCuda::GraphDestroy(CudaGraph* graph) {
  std::shared_ptr<const FakeGraph> dropped;  // Dropped after the lock, as above.
  std::lock_guard lock(mutex_);
  const auto found = graphs_.find(graph);
  if (found == graphs_.end()) {
    violations_.push_back("cudaGraphExecDestroy of a graph that does not exist");
    return CudaResult::kInvalidValue;
  }
  dropped = std::move(found->second);
  graphs_.erase(found);
  return CudaResult::kSuccess;
}

CudaResult FakeCuda::EventRecordInGraph(CudaEvent* event, CudaStream* stream) {
  const auto found = Find(event);
  if (found == nullptr) {
    return Violation("cudaEventRecordWithFlags of an event that does not exist");
  }
  std::lock_guard lock(mutex_);
  if (capture_ == nullptr || !capture_->holds(stream)) {
    return CudaResult::kInvalidValue;
  }
  capture_->AddRecord(stream, found, [found] {
    std::lock_guard done(found->mutex);
    ++found->done;
    found->done_at = std::chrono::steady_clock::now();
    found->changed.notify_all();
  });
  return CudaResult::kSuccess;
}

CudaResult FakeCuda::Forbid() {
  std::lock_guard lock(mutex_);
  if (capture_ == nullptr || !capture_->is_mine()) {
    return CudaResult::kSuccess;
  }
  capture_->Spoil();
  return kCaptureUnsupported;
}

// A query of such an event conflicts with the capture in every mode, whichever thread makes it
// (cuda_runtime_api.h at cudaThreadExchangeStreamCaptureMode). Other queries of other threads do
// not.
CudaResult FakeCuda::QueryCaptured(uint64_t capture) {
  std::lock_guard lock(mutex_);
  if (capture_ != nullptr && capture == captures_) {
    capture_->Spoil();
  }
  return kCapturedEvent;
}

bool FakeCuda::Record(CudaStream* stream, const std::function<void()>& operation) {
  std::lock_guard lock(mutex_);
  if (capture_ == nullptr || !capture_->holds(stream)) {
    return false;
  }
  capture_->Add(stream, operation);
  return true;
}

}  // namespace dtrain::comm
