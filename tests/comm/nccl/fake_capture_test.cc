// The fake CUDA's captures behave as CUDA's documentation says, on which other tests of graphs
// rely.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "comm/nccl/fake/fake_cuda.h"
#include "tests/comm/nccl/graph_of_buckets.h"

namespace dtrain::comm::fake_capture_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr CudaResult kOk = CudaResult::kSuccess;

class FakeCaptureTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cuda_.StreamCreate(&stream_, false), kOk);
    ASSERT_EQ(cuda_.StreamCreate(&other_, false), kOk);
    ASSERT_EQ(cuda_.EventCreate(&event_, false), kOk);
    ASSERT_EQ(cuda_.EventCreate(&back_, false), kOk);
  }
  void TearDown() override {
    EXPECT_THAT(cuda_.violations(), IsEmpty());
    (void)cuda_.EventDestroy(event_);
    (void)cuda_.EventDestroy(back_);
    (void)cuda_.StreamDestroy(stream_);
    (void)cuda_.StreamDestroy(other_);
    EXPECT_EQ(cuda_.live_handles(), 0);
  }
  std::function<void()> Add(int number) {
    return [this, number] { sum_ += number; };
  }

  FakeCuda cuda_;
  CudaStream* stream_ = nullptr;
  CudaStream* other_ = nullptr;
  CudaEvent* event_ = nullptr;
  CudaEvent* back_ = nullptr;
  int sum_ = 0;
};

TEST_F(FakeCaptureTest, WhatIsCapturedRunsWithEachLaunchAndNotBefore) {
  for (CudaStream* const stream : {stream_, cuda_.host_stream()}) {
    sum_ = 0;
    ASSERT_EQ(cuda_.StreamBeginCapture(stream), kOk);
    bool capturing = false;
    EXPECT_EQ(cuda_.StreamIsCapturing(stream, &capturing), kOk);
    EXPECT_TRUE(capturing);
    cuda_.Enqueue(stream, Add(1));
    CudaGraph* graph = nullptr;
    ASSERT_EQ(cuda_.StreamEndCapture(stream, &graph), kOk);
    EXPECT_EQ(cuda_.StreamSynchronize(stream), kOk);
    EXPECT_EQ(sum_, 0);
    const int64_t before = cuda_.queued();
    for (int launch = 1; launch <= 3; ++launch) {
      EXPECT_EQ(cuda_.GraphLaunch(graph, stream), kOk);
      EXPECT_EQ(cuda_.StreamSynchronize(stream), kOk);
      EXPECT_EQ(sum_, launch);
    }
    EXPECT_EQ(cuda_.queued() - before, 3) << "a launch is one operation";
    EXPECT_EQ(cuda_.GraphDestroy(graph), kOk);
  }
}

// A stream that waits after a launch waits for this launch to come to the place, and for no more.
TEST_F(FakeCaptureTest, EachLaunchRecordsAnEventAtItsPlace) {
  EXPECT_EQ(cuda_.EventRecordInGraph(event_, stream_), CudaResult::kInvalidValue)
      << "outside of a capture";
  GraphOfBuckets graph(&cuda_, 2, [this](size_t bucket) { sum_ += bucket == 0 ? 1 : 10; });
  int seen = 0;
  for (int launch = 1; launch <= 3; ++launch) {
    graph.Launch();
    EXPECT_EQ(cuda_.StreamWaitEvent(other_, graph.place(1)), kOk);
    cuda_.Enqueue(other_, [this, &seen] { seen = sum_; });
    EXPECT_EQ(cuda_.StreamSynchronize(other_), kOk);
    EXPECT_EQ(seen, 11 * launch);
    EXPECT_TRUE(graph.End());
  }
  EXPECT_EQ(cuda_.waits_inside_graphs(), 3);
}

TEST_F(FakeCaptureTest, AnotherStreamJoinsByAnEventAndMustBeWaitedFor) {
  for (const bool joins : {true, false}) {
    sum_ = 0;
    ASSERT_EQ(cuda_.StreamBeginCapture(stream_), kOk);
    EXPECT_EQ(cuda_.EventRecord(event_, stream_), kOk);
    EXPECT_EQ(cuda_.StreamWaitEvent(other_, event_), kOk);
    cuda_.Enqueue(other_, Add(10));
    EXPECT_EQ(cuda_.EventRecord(back_, other_), kOk);
    if (joins) {
      EXPECT_EQ(cuda_.StreamWaitEvent(stream_, back_), kOk);
    }
    CudaGraph* graph = nullptr;
    const CudaResult ended = cuda_.StreamEndCapture(stream_, &graph);
    EXPECT_EQ(ended == kOk, joins);
    if (joins) {
      EXPECT_EQ(cuda_.GraphLaunch(graph, stream_), kOk);
      EXPECT_EQ(cuda_.StreamSynchronize(stream_), kOk);
      EXPECT_EQ(sum_, 10);
      EXPECT_EQ(cuda_.GraphDestroy(graph), kOk);
    } else {
      EXPECT_THAT(cuda_.ErrorString(ended), HasSubstr("unjoined work"));
    }
    bool capturing = true;
    EXPECT_EQ(cuda_.StreamIsCapturing(other_, &capturing), kOk);
    EXPECT_FALSE(capturing);
  }
}

TEST_F(FakeCaptureTest, WhatWaitsOrTakesMemorySpoilsTheCapture) {
  ASSERT_EQ(cuda_.EventRecord(event_, other_), kOk);
  void* data = nullptr;
  const std::vector<std::function<CudaResult()>> forbidden = {
      [&] { return cuda_.StreamSynchronize(stream_); },
      [&] { return cuda_.StreamSynchronize(other_); },
      [&] { return cuda_.EventQuery(event_); },
      [&] { return cuda_.MallocDevice(&data, 8); },
      [&] { return cuda_.MallocPinned(&data, 8); },
      [&] { return cuda_.StreamWaitEvent(stream_, event_); },  // Work outside of the capture.
  };
  for (size_t i = 0; i < forbidden.size(); ++i) {
    ASSERT_EQ(cuda_.StreamBeginCapture(stream_), kOk) << i;
    cuda_.Enqueue(stream_, Add(1));
    EXPECT_NE(forbidden[i](), kOk) << i;
    CudaGraph* graph = nullptr;
    const CudaResult ended = cuda_.StreamEndCapture(stream_, &graph);
    EXPECT_THAT(cuda_.ErrorString(ended), HasSubstr("previous error during capture")) << i;
    EXPECT_EQ(graph, nullptr);
  }
  EXPECT_EQ(cuda_.StreamSynchronize(stream_), kOk) << "the stream can be used as before";
  EXPECT_EQ(sum_, 0);
}

TEST_F(FakeCaptureTest, AnotherThreadMayAskItsEventsMeanwhile) {
  ASSERT_EQ(cuda_.EventRecord(event_, other_), kOk);
  ASSERT_EQ(cuda_.StreamSynchronize(other_), kOk);
  ASSERT_EQ(cuda_.StreamBeginCapture(stream_), kOk);
  EXPECT_EQ(cuda_.EventRecord(back_, stream_), kOk);
  std::thread([&] { EXPECT_EQ(cuda_.EventQuery(event_), kOk); }).join();
  CudaGraph* graph = nullptr;
  EXPECT_EQ(cuda_.StreamEndCapture(stream_, &graph), kOk);
  EXPECT_EQ(cuda_.GraphDestroy(graph), kOk);
}

// Freeing waits for the device, which a capture forbids to every thread.
TEST_F(FakeCaptureTest, DeviceMemoryThatAnotherThreadFreesSpoilsTheCapture) {
  void* data = nullptr;
  ASSERT_EQ(cuda_.MallocDevice(&data, 8), kOk);
  ASSERT_EQ(cuda_.StreamBeginCapture(stream_), kOk);
  std::thread([&] { EXPECT_NE(cuda_.FreeDevice(data), kOk); }).join();
  CudaGraph* graph = nullptr;
  EXPECT_THAT(cuda_.ErrorString(cuda_.StreamEndCapture(stream_, &graph)),
              HasSubstr("previous error during capture"));
  EXPECT_TRUE(cuda_.IsDeviceMemory(data, 8)) << "nothing was freed";
  EXPECT_EQ(cuda_.FreeDevice(data), kOk);
}

TEST_F(FakeCaptureTest, AnEventOfTheCaptureThatAnotherThreadAsksSpoilsIt) {
  const auto ask = [&] {
    std::thread([&] {
      EXPECT_THAT(cuda_.ErrorString(cuda_.EventQuery(back_)), HasSubstr("cudaErrorCapturedEvent"));
    }).join();
  };
  ASSERT_EQ(cuda_.StreamBeginCapture(stream_), kOk);
  EXPECT_EQ(cuda_.EventRecord(back_, stream_), kOk);
  ask();
  CudaGraph* graph = nullptr;
  EXPECT_THAT(cuda_.ErrorString(cuda_.StreamEndCapture(stream_, &graph)),
              HasSubstr("previous error during capture"));
  // It is still an event of that capture, which is over, so that the next one is not spoilt.
  ASSERT_EQ(cuda_.StreamBeginCapture(stream_), kOk);
  ask();
  EXPECT_EQ(cuda_.StreamEndCapture(stream_, &graph), kOk);
  EXPECT_EQ(cuda_.GraphDestroy(graph), kOk);
}

}  // namespace
}  // namespace dtrain::comm::fake_capture_test
