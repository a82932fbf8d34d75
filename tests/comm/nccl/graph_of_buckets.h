// A captured backward for tests of streams that wait for a place inside a graph. It fills buckets
// one after the other, and ends only when the test lets it.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "comm/nccl/fake/fake_cuda.h"

namespace dtrain::comm {

class GraphOfBuckets {
 public:
  // fill(b) runs when bucket b is filled, which place(b) stands for. REQUIRES: `cuda` outlives it.
  GraphOfBuckets(FakeCuda* cuda, size_t buckets, const std::function<void(size_t)>& fill)
      : cuda_(cuda), places_(buckets) {
    EXPECT_EQ(cuda->StreamCreate(&stream_, false), CudaResult::kSuccess);
    for (CudaEvent*& place : places_) {
      EXPECT_EQ(cuda->EventCreate(&place, false), CudaResult::kSuccess);
    }
    EXPECT_EQ(cuda->StreamBeginCapture(stream_), CudaResult::kSuccess);
    for (size_t b = 0; b < buckets; ++b) {
      EXPECT_EQ(cuda->Enqueue(stream_, [fill, b] { fill(b); }), CudaResult::kSuccess);
      EXPECT_EQ(cuda->EventRecordInGraph(places_[b], stream_), CudaResult::kSuccess);
    }
    EXPECT_EQ(cuda->Enqueue(stream_, [this] { AwaitEnd(); }), CudaResult::kSuccess);
    EXPECT_EQ(cuda->StreamEndCapture(stream_, &graph_), CudaResult::kSuccess);
  }
  GraphOfBuckets(const GraphOfBuckets&) = delete;
  GraphOfBuckets& operator=(const GraphOfBuckets&) = delete;
  ~GraphOfBuckets() {
    EXPECT_EQ(cuda_->GraphDestroy(graph_), CudaResult::kSuccess);
    for (CudaEvent* const place : places_) {
      EXPECT_EQ(cuda_->EventDestroy(place), CudaResult::kSuccess);
    }
    EXPECT_EQ(cuda_->StreamDestroy(stream_), CudaResult::kSuccess);
  }

  CudaStream* stream() const { return stream_; }
  CudaEvent* place(size_t bucket) const { return places_[bucket]; }
  void Launch() {
    may_end_ = false;
    EXPECT_EQ(cuda_->GraphLaunch(graph_, stream_), CudaResult::kSuccess);
  }
  // Lets the launch end, and waits for it. False if it has ended before, at its own time limit.
  bool End() {
    may_end_ = true;
    EXPECT_EQ(cuda_->StreamSynchronize(stream_), CudaResult::kSuccess);
    return !gave_up_;
  }

 private:
  void AwaitEnd() {
    const auto bound = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!may_end_ && std::chrono::steady_clock::now() < bound) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    gave_up_ = gave_up_ || !may_end_;
  }

  FakeCuda* const cuda_;
  CudaStream* stream_ = nullptr;
  std::vector<CudaEvent*> places_;
  CudaGraph* graph_ = nullptr;
  std::atomic<bool> may_end_{false};
  std::atomic<bool> gave_up_{false};
};

}  // namespace dtrain::comm
