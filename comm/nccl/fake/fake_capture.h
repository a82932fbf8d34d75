// The record that FakeCuda keeps between the begin and the end of a stream's capture.
//
// Streams join as CUDA's do, by waiting for an event of a stream that takes part, and must have
// been waited for at the end. How much of each stream has been waited for is kept as a clock: for
// every stream, how many of its operations come before. Not thread-safe: FakeCuda's lock guards it.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/nccl/cuda_api.h"

namespace dtrain::comm {

// CUDA's errors about captures (cudaErrorStreamCapture*).
inline constexpr auto kCaptureUnsupported = static_cast<CudaResult>(900);
inline constexpr auto kCaptureInvalidated = static_cast<CudaResult>(901);
inline constexpr auto kCaptureUnjoined = static_cast<CudaResult>(904);
inline constexpr auto kCaptureIsolation = static_cast<CudaResult>(905);
inline constexpr auto kCapturedEvent = static_cast<CudaResult>(907);

// CUDA's text for these errors. For another one the text is its number.
std::string FakeCaptureError(CudaResult result);

struct FakeEvent;

// The operations that a launch runs, in the order of their recording, and the events that it
// records meanwhile.
struct FakeGraph {
  std::vector<std::function<void()>> nodes;
  std::vector<std::shared_ptr<FakeEvent>> events;
};

class FakeCapture {
 public:
  using Clock = std::map<CudaStream*, size_t>;

  // The calling thread captures.
  explicit FakeCapture(CudaStream* origin) : origin_(origin) { clocks_[origin]; }

  CudaStream* origin() const { return origin_; }
  bool holds(CudaStream* stream) const { return clocks_.count(stream) > 0; }
  // Whether the calling thread captures, so that its calls are restricted.
  bool is_mine() const { return std::this_thread::get_id() == thread_; }
  void Spoil() { spoilt_ = true; }
  bool spoilt() const { return spoilt_; }

  void Add(CudaStream* stream, std::function<void()> operation) {
    graph_.nodes.push_back(std::move(operation));
    ++clocks_[stream][stream];
  }
  // Adds `operation`, which records `event`.
  void AddRecord(CudaStream* stream, std::shared_ptr<FakeEvent> event,
                 std::function<void()> operation) {
    graph_.events.push_back(std::move(event));
    Add(stream, std::move(operation));
  }
  // The clock for which an event stands that is recorded on `stream` now.
  Clock Now(CudaStream* stream) { return clocks_[stream]; }
  // Lets `stream` wait for such an event, by which it joins the capture.
  void Wait(CudaStream* stream, const Clock& clock) {
    clocks_[stream];
    for (const auto& [other, count] : clock) {
      size_t& seen = clocks_[stream][other];
      seen = seen < count ? count : seen;
    }
  }
  // Whether the origin has waited for every stream that joined.
  bool joined() const {
    const Clock& origin = clocks_.at(origin_);
    for (const auto& [stream, clock] : clocks_) {
      const auto last = clock.find(stream);
      const auto seen = origin.find(stream);
      if (last != clock.end() && (seen == origin.end() || seen->second < last->second)) {
        return false;
      }
    }
    return true;
  }
  FakeGraph Take() { return std::move(graph_); }

 private:
  CudaStream* const origin_;
  const std::thread::id thread_ = std::this_thread::get_id();
  std::map<CudaStream*, Clock> clocks_;
  FakeGraph graph_;
  bool spoilt_ = false;
};

}  // namespace dtrain::comm
