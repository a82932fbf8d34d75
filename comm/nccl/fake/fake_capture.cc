// FakeCuda's captures: what may be done during one, and what it gives.
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
  std::unique_ptr<FakeCapture> capture;  // Dropped after the lock: operations may own memory.
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
  auto made = std::make_shared<const FakeNodes>(capture->TakeNodes());
  *graph = reinterpret_cast<CudaGraph*>(const_cast<FakeNodes*>(made.get()));
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
  const auto nodes = found->second;
  lock.unlock();
  ++graph_launches_;
  return Enqueue(stream, [nodes] {
    for (const auto& node : *nodes) {
      node();
    }
  });
}

CudaResult FakeCuda::GraphDestroy(CudaGraph* graph) {
  std::shared_ptr<const FakeNodes> dropped;  // After the lock, as above.
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

CudaResult FakeCuda::Forbid() {
  std::lock_guard lock(mutex_);
  if (capture_ == nullptr || !capture_->is_mine()) {
    return CudaResult::kSuccess;
  }
  capture_->Spoil();
  return kCaptureUnsupported;
}

// By whatever thread: such a query conflicts with the capture in every mode (cuda_runtime_api.h at
// cudaThreadExchangeStreamCaptureMode), where other queries are another thread's own affair.
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
