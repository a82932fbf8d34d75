// The NCCL group of one rank and its kernels on a real GPU. Without one each test says SKIPPED,
// loudly, and ctest counts the program as skipped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <vector>

#include "tests/comm/nccl/built_plugin.h"

namespace dtrain::comm::nccl_gpu_test {
namespace {

class NcclOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    const auto count = BuiltPlugin().DeviceCount();
    if (!count.ok()) {
      std::fprintf(stderr, "*** SKIPPED: NOT TESTED ON A GPU: %s ***\n",
                   std::string(count.status().message()).c_str());
      GTEST_SKIP() << count.status().message();
    }
    auto seams = BuiltPlugin().seams();
    ASSERT_TRUE(seams.ok()) << seams.status();
    seams_ = *seams;
    std::fprintf(stderr, "%s, %s\n", seams_.cuda->Description().c_str(),
                 seams_.nccl->Description().c_str());
    ASSERT_EQ(seams_.cuda->SetDevice(0), CudaResult::kSuccess);
    ASSERT_EQ(seams_.cuda->StreamCreate(&stream_, false), CudaResult::kSuccess);
    NcclGroupOptions options;
    options.compute_stream = stream_;
    options.group.timeout = absl::Seconds(60);
    auto group = NcclGroup::Create(seams_, nullptr, options);
    ASSERT_TRUE(group.ok()) << group.status();
    group_ = *std::move(group);
  }
  Buffer Upload(const std::vector<float>& values) {
    Buffer buffer;
    buffer.bytes = values.size() * sizeof(float);
    buffer.device = {DeviceKind::kCuda, 0};
    EXPECT_EQ(seams_.cuda->MallocDevice(&buffer.data, buffer.bytes), CudaResult::kSuccess);
    EXPECT_EQ(seams_.cuda->CopyAsync(buffer.data, values.data(), buffer.bytes, stream_),
              CudaResult::kSuccess);
    EXPECT_EQ(seams_.cuda->StreamSynchronize(stream_), CudaResult::kSuccess);
    return buffer;
  }
  std::vector<float> Download(const Buffer& buffer) {
    std::vector<float> values(buffer.count());
    EXPECT_EQ(seams_.cuda->CopyAsync(values.data(), buffer.data, buffer.bytes, stream_),
              CudaResult::kSuccess);
    EXPECT_EQ(seams_.cuda->StreamSynchronize(stream_), CudaResult::kSuccess);
    return values;
  }
  NcclSeams seams_;
  CudaStream* stream_ = nullptr;
  std::unique_ptr<NcclGroup> group_;
};

TEST_F(NcclOnGpu, EveryCollectiveOfOneRankIsTheIdentityAndTheNormIsRight) {
  std::vector<float> values(100003);
  double squares = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(static_cast<int>(i % 31) - 15) / 8;
    squares += double{values[i]} * values[i];
  }
  const Buffer buffer = Upload(values);
  const Buffer other = Upload(std::vector<float>(values.size()));
  auto registration = group_->RegisterDevice(buffer.data, buffer.bytes);
  ASSERT_TRUE(registration.ok()) << registration.status();
  double sum = 0;
  CollectiveOptions with_sum;
  with_sum.sum_of_squares = &sum;
  ASSERT_TRUE(group_->AllReduce(buffer, ReduceOp::kAverage, with_sum)->Wait().ok());
  EXPECT_EQ(Download(buffer), values);
  EXPECT_NEAR(sum, squares, 1e-9 * squares);
  ASSERT_TRUE(group_->ReduceScatter(buffer, other, ReduceOp::kSum, with_sum)->Wait().ok());
  EXPECT_EQ(Download(other), values);
  EXPECT_NEAR(sum, squares, 1e-9 * squares);
  ASSERT_TRUE(group_->AllGather(buffer, other)->Wait().ok());
  ASSERT_TRUE(group_->Broadcast(other, 0)->Wait().ok());
  ASSERT_TRUE(group_->AllToAll(buffer, other)->Wait().ok());
  EXPECT_EQ(Download(other), values);
  ASSERT_TRUE(group_->Barrier(Deadline::After(absl::Seconds(60))).ok());
  registration->reset();
  EXPECT_TRUE(group_->Close(Deadline::After(absl::Seconds(60))).ok());
}

TEST_F(NcclOnGpu, PartsAreAddedInRankOrderAndANonFiniteElementShowsInTheSum) {
  const std::vector<float> parts = {1e8F, 1.0F, -1e8F, 2.0F, 1.0F, 3.0F};  // 3 parts of 2.
  const Buffer input = Upload(parts);
  const Buffer output = Upload({0, 0});
  ASSERT_EQ(seams_.kernels.sum_parts_in_order(input.data, 3, 2, DType::kFloat32, 0.5F, output.data,
                                              stream_),
            CudaResult::kSuccess);
  EXPECT_THAT(Download(output), testing::ElementsAre(0.5F * ((1e8F - 1e8F) + 1.0F), 3.0F));
  double sum = 0;
  CollectiveOptions with_sum;
  with_sum.sum_of_squares = &sum;
  const Buffer broken = Upload({1, INFINITY});
  ASSERT_TRUE(group_->AllReduce(broken, ReduceOp::kSum, with_sum)->Wait().ok());
  EXPECT_FALSE(std::isfinite(sum));
}

// A stream that waits for a place in a graph must see data of this launch, not of the one before.
TEST_F(NcclOnGpu, ACallWaitsForItsPlaceInTheGraphThatWasLaunched) {
  constexpr size_t kSlow = size_t{1} << 30;  // It takes the device some 0.3 ms.
  void* slow = nullptr;
  ASSERT_EQ(seams_.cuda->MallocDevice(&slow, kSlow), CudaResult::kSuccess);
  const Buffer bucket = Upload(std::vector<float>(100003));
  const Buffer given = Upload(std::vector<float>(100003));
  CudaEvent* place = nullptr;
  ASSERT_EQ(seams_.cuda->EventCreate(&place, false), CudaResult::kSuccess);
  ASSERT_EQ(seams_.cuda->StreamBeginCapture(stream_), CudaResult::kSuccess);
  EXPECT_EQ(seams_.cuda->FillAsync(slow, 1, kSlow, stream_), CudaResult::kSuccess);
  EXPECT_EQ(seams_.cuda->CopyAsync(bucket.data, given.data, bucket.bytes, stream_),
            CudaResult::kSuccess);
  EXPECT_EQ(seams_.cuda->EventRecordInGraph(place, stream_), CudaResult::kSuccess);
  EXPECT_EQ(seams_.cuda->FillAsync(slow, 2, kSlow, stream_), CudaResult::kSuccess);
  CudaGraph* graph = nullptr;
  ASSERT_EQ(seams_.cuda->StreamEndCapture(stream_, &graph), CudaResult::kSuccess);
  const Buffer result = Upload(std::vector<float>(100003));
  for (int launch = 1; launch <= 20; ++launch) {
    const std::vector<float> values(100003, static_cast<float>(launch));
    ASSERT_EQ(seams_.cuda->CopyAsync(given.data, values.data(), given.bytes, stream_),
              CudaResult::kSuccess);
    ASSERT_EQ(seams_.cuda->GraphLaunch(graph, stream_), CudaResult::kSuccess);
    const auto work = group_->ReduceScatter(bucket, result, ReduceOp::kSum, {.after = place});
    ASSERT_TRUE(work.ok()) << work.status();
    ASSERT_TRUE(work->Wait().ok());
    EXPECT_EQ(Download(result), values);
  }
  EXPECT_EQ(seams_.cuda->GraphDestroy(graph), CudaResult::kSuccess);
  EXPECT_EQ(seams_.cuda->EventDestroy(place), CudaResult::kSuccess);
  EXPECT_EQ(seams_.cuda->FreeDevice(slow), CudaResult::kSuccess);
}

TEST_F(NcclOnGpu, AbortEndsTheGroupAndLaterCallsSaySo) {
  group_->Abort("a test");
  const auto later = group_->AllReduce(Upload({1}), ReduceOp::kSum);
  EXPECT_EQ(later.status().code(), absl::StatusCode::kAborted) << later.status();
}

}  // namespace
}  // namespace dtrain::comm::nccl_gpu_test
