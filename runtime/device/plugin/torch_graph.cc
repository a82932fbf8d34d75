// TensorGraph over at::cuda::CUDAGraph, which knows what LibTorch's allocator and generators need.
#include <cuda_runtime_api.h>

#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "ATen/core/CachingHostAllocator.h"
#include "ATen/cuda/CUDAGraph.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "c10/cuda/CUDACachingAllocator.h"
#include "c10/cuda/CUDAStream.h"
#include "runtime/device/plugin/torch_plugin.h"

namespace dtrain {
namespace {

// LibTorch's exceptions end here.
template <typename Call>
absl::Status Caught(absl::string_view what, Call call) {
  try {
    call();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return absl::InternalError(absl::StrCat(what, ": ", text.substr(0, text.find('\n'))));
  }
}

using Pool = std::shared_ptr<const c10::MempoolId_t>;

// One for all graphs that live: they run in the order of their capture, step by step, and nothing
// that one allocated is read by another. LibTorch cannot use a pool again whose last graph is gone.
Pool ThePool() {
  static std::weak_ptr<const c10::MempoolId_t> last;  // Used by the thread that trains.
  Pool pool = last.lock();
  if (pool == nullptr) {
    pool = std::make_shared<const c10::MempoolId_t>(at::cuda::graph_pool_handle());
    last = pool;
  }
  return pool;
}

class TorchGraph final : public TensorGraph {
 public:
  explicit TorchGraph(int device) : device_(static_cast<c10::DeviceIndex>(device)) {}
  ~TorchGraph() override {
    if (capturing_) {
      GiveUp().IgnoreError();
    }
  }

  absl::Status Begin() override {
    capturing_ = true;
    absl::Status begun = Caught("the begin of a capture", [this] {
      // Only this thread's calls are captured: a watchdog's thread may ask its events meanwhile.
      graph_.emplace().capture_begin(*pool_, cudaStreamCaptureModeThreadLocal);
    });
    if (!begun.ok()) {
      GiveUp().IgnoreError();
    }
    return begun;
  }

  absl::Status End() override {
    absl::Status ended = Caught("the end of a capture", [this] { graph_->capture_end(); });
    if (!ended.ok()) {
      ended.Update(GiveUp());
    }
    capturing_ = false;
    return ended;
  }

  absl::Status Launch() override {
    return Caught("the launch of a graph", [this] { graph_->replay(); });
  }

 private:
  // CUDAGraph does not clean up behind a capture that failed: the allocator would go on giving from
  // the graph's pool and free nothing, and the generator would refuse every draw outside of a
  // capture. A second, empty capture that ends well, in a pool of its own, brings the generator
  // back.
  absl::Status GiveUp() {
    capturing_ = false;
    cudaGraph_t unwanted = nullptr;
    if (cudaStreamEndCapture(c10::cuda::getCurrentCUDAStream(device_), &unwanted) == cudaSuccess &&
        unwanted != nullptr) {
      (void)cudaGraphDestroy(unwanted);
    }
    (void)cudaGetLastError();  // Said already.
    // A capture that got beyond its begin throws when it ends, and CUDAGraph then releases the pool
    // itself.
    Caught("", [this] {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(device_, *pool_);
      c10::cuda::CUDACachingAllocator::releasePool(device_, *pool_);
      Caught("", [this] {
        at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(*pool_);
        at::getHostAllocator(at::kCUDA)->release_pool(*pool_);
      }).IgnoreError();
    }).IgnoreError();
    graph_.reset();
    return Caught("the end of a capture that failed", [] {
      at::cuda::CUDAGraph empty;
      empty.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
      empty.capture_end();
    });
  }

  const c10::DeviceIndex device_;
  const Pool pool_ = ThePool();  // Outlives graph_.
  std::optional<at::cuda::CUDAGraph> graph_;
  bool capturing_ = false;
};

absl::StatusOr<std::unique_ptr<TensorGraph>> NewGraph(int device) {
  return std::make_unique<TorchGraph>(device);
}

}  // namespace
}  // namespace dtrain

extern "C" __attribute__((visibility("default"))) const dtrain::TorchPluginTable*
dtrain_torch_plugin() {
  static const dtrain::TorchPluginTable table = {DTRAIN_PLUGIN_VERSION, dtrain::NewGraph};
  return &table;
}
