// Gathered weights on a GPU, over the fake: memory moves from bucket to bucket, and never away from
// work that is queued.
#include "runtime/shard/gather_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "ATen/Functions.h"
#include "base/deadline.h"
#include "base/status.h"
#include "comm/nccl/fake/fake_kernels.h"
#include "comm/nccl/nccl_group.h"
#include "runtime/shard/live_parameters.h"
#include "tests/runtime/testing/fake_device.h"
#include "torch/nn/module.h"

namespace dtrain::gather_blocks_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kBucket = 4096;  // Elements: four pages.
constexpr int64_t kBuckets = 10;

class Weights : public torch::nn::Module {
 public:
  Weights() { register_parameter("w", at::zeros({kBuckets * kBucket})); }
};

// One rank whose compute stream is a thread, as a GPU's is.
class GatherBlocksTest : public ::testing::Test {
 protected:
  void SetUp() override { EXPECT_EQ(Make().message(), ""); }
  void TearDown() override {
    blocks_.reset();
    flat_.reset();
    group_.reset();
    EXPECT_THAT(cuda_.violations(), IsEmpty());
  }

  absl::Status Make() {
    CudaParts parts;
    parts.api = &cuda_;
    parts.kernels = testing::FakeKernelTable(&cuda_);
    if (cuda_.StreamCreate(&parts.compute_stream, false) != comm::CudaResult::kSuccess) {
      return absl::InternalError("no stream");
    }
    parts.tensors = at::Device(at::kCPU);
    device_ = std::make_unique<Device>(parts);
    comm::NcclGroupOptions options;
    options.compute_stream = parts.compute_stream;
    const comm::NcclSeams seams{&nccl_, &cuda_, comm::MakeFakeKernels(&cuda_)};
    DT_ASSIGN_OR_RETURN(group_, comm::NcclGroup::Create(seams, nullptr, options));
    DT_ASSIGN_OR_RETURN(flat_, FlatParameters::Describe(module_, DType::kFloat32, *device_));
    plan::ShardOptions shards{.align_elements = 1024};
    shards.buckets = {.bucket_elements = kBucket, .first_bucket_elements = kBucket};
    shards.units = units_;
    DT_ASSIGN_OR_RETURN(plan::ShardPlan plan, plan::ShardPlan::Create(flat_->layout(), shards));
    plan_ = std::make_unique<plan::ShardPlan>(std::move(plan));
    return flat_->MoveIn({.pad_to_multiple = shards.grain(),
                          .with_gradients = false,
                          .values = ValueMemory::kReserved},
                         [](const plan::LayoutEntry&, const at::Tensor&) {});
  }
  absl::Status MakeBlocks(int64_t live_max) {
    DT_ASSIGN_OR_RETURN(blocks_, GatherBlocks::Create(*device_, *group_, *flat_, *plan_, {},
                                                      {live_max, /*timeout_seconds=*/20}));
    return absl::OkStatus();
  }
  float* DataOf(int bucket) {
    return static_cast<float*>(flat_->values().mutable_data_ptr()) + bucket * kBucket;
  }
  absl::Status Open(int bucket) {
    opening_ = bucket;
    return blocks_->Open(bucket);
  }
  // A read of the whole bucket that the device comes to late: when `behind` is being opened.
  void ReadLate(int bucket, int behind = 0) {
    (void)cuda_.Enqueue(device_->stream(), [this, bucket, behind] {
      const Deadline bound = Deadline::After(absl::Seconds(10));
      while (opening_ < behind && !bound.Expired()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      for (int64_t i = 0; i < kBucket; ++i) {
        sum_ += static_cast<double>(DataOf(bucket)[i]);
      }
    });
  }
  void Fill(int bucket, float value) {
    (void)cuda_.Enqueue(device_->stream(),
                        [this, bucket, value] { std::fill_n(DataOf(bucket), kBucket, value); });
  }

  std::vector<plan::FlatRange> units_;
  comm::FakeFabric fabric_;
  comm::FakeCuda cuda_;
  comm::FakeNccl nccl_{&fabric_, &cuda_, {}};
  Weights module_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<comm::NcclGroup> group_;
  std::unique_ptr<FlatParameters> flat_;
  std::unique_ptr<plan::ShardPlan> plan_;
  std::unique_ptr<GatherBlocks> blocks_;
  std::atomic<int> opening_{0};  // The last bucket that Open began with.
  double sum_ = 0;
};

TEST_F(GatherBlocksTest, ABlockIsNotTakenFromWorkThatIsQueued) {
  ASSERT_EQ(MakeBlocks(kBucket).message(), "");  // One bucket live, and one block to spare.
  for (int bucket = 0; bucket < 4; ++bucket) {
    ASSERT_EQ(Open(bucket).message(), "");
    Fill(bucket, static_cast<float>(bucket + 1));
    ReadLate(bucket, /*behind=*/std::min(bucket + 2, 3));
    ASSERT_EQ(blocks_->Discard(bucket).message(), "");
  }
  EXPECT_EQ(cuda_.unmaps(), 2) << "the first two had blocks of their own";
  EXPECT_GT(blocks_->TakeWaitedSeconds(), 0.02);
  EXPECT_EQ(blocks_->TakeWaitedSeconds(), 0);
  ASSERT_EQ(device_->Synchronize().message(), "");
  EXPECT_EQ(sum_, kBucket * (1 + 2 + 3 + 4));
  EXPECT_EQ(blocks_->bytes(), 2 * kBucket * 4);
}

TEST_F(GatherBlocksTest, WhatIsOpenedAgainBeforeItsBlockIsTakenKeepsIt) {
  ASSERT_EQ(MakeBlocks(kBucket).message(), "");
  ASSERT_EQ(blocks_->Open(0).message(), "");
  Fill(0, 3);
  ASSERT_EQ(blocks_->Discard(0).message(), "");
  ASSERT_EQ(blocks_->Open(0).message(), "");
  ReadLate(0);
  ASSERT_EQ(blocks_->Open(1).message(), "");
  ASSERT_EQ(blocks_->Discard(1).message(), "");
  ASSERT_EQ(blocks_->Open(2).message(), "") << "takes the block of 1, not of 0, which is open";
  ASSERT_EQ(device_->Synchronize().message(), "");
  EXPECT_EQ(sum_, kBucket * 3);
  EXPECT_EQ(cuda_.unmaps(), 1);
}

TEST_F(GatherBlocksTest, WhatMustBeLiveAtOnceGetsMoreThanTheLimit) {
  ASSERT_EQ(MakeBlocks(1).message(), "");
  for (int bucket = 0; bucket < 4; ++bucket) {
    ASSERT_EQ(blocks_->Open(bucket).message(), "");
    Fill(bucket, 1);
  }
  EXPECT_EQ(blocks_->bytes(), 4 * kBucket * 4);
  EXPECT_EQ(cuda_.unmaps(), 0);
  for (int bucket = 0; bucket < 4; ++bucket) {
    ASSERT_EQ(blocks_->Discard(bucket).message(), "");
  }
  ASSERT_EQ(device_->Synchronize().message(), "");
  ASSERT_EQ(blocks_->Open(5).message(), "");
  EXPECT_EQ(blocks_->bytes(), kBucket * 4) << "the rest is the program's again";
}

// The first six buckets of the others are one.
class UnevenBlocksTest : public GatherBlocksTest {
 protected:
  UnevenBlocksTest() { units_ = {{0, 6 * kBucket}}; }
};

TEST_F(UnevenBlocksTest, SmallBucketsHaveSmallBlocks) {
  ASSERT_EQ(MakeBlocks(7 * kBucket).message(), "");
  // For the large one, for three of the small ones that may be live with it or instead, and one
  // large one more.
  const int64_t bytes = (6 + 3 + 6) * kBucket * 4;
  EXPECT_EQ(blocks_->bytes(), bytes);
  for (const int bucket : {1, 2, 3, 4}) {
    ASSERT_EQ(blocks_->Open(bucket).message(), "");
  }
  ASSERT_EQ(blocks_->Open(0).message(), "");
  EXPECT_EQ(blocks_->bytes(), bytes) << "the fourth small one took the large block to spare";
  (void)cuda_.Enqueue(device_->stream(),
                      [this] { std::fill_n(DataOf(0), kBuckets * kBucket, 1.0F); });
  for (const int bucket : {1, 2, 3, 4, 0}) {
    ASSERT_EQ(blocks_->Discard(bucket).message(), "");
  }
  for (const int bucket : {0, 4, 3, 2, 1}) {
    ASSERT_EQ(blocks_->Open(bucket).message(), "");
  }
  EXPECT_EQ(blocks_->bytes(), bytes);
  EXPECT_EQ(cuda_.unmaps(), 0) << "each found its own";
}

TEST_F(UnevenBlocksTest, WhatWasTakenBeyondTheLimitIsGivenBackByItsSize) {
  ASSERT_EQ(MakeBlocks(kBucket).message(), "");  // A small one, and one for the large one.
  EXPECT_EQ(blocks_->bytes(), (6 + 1) * kBucket * 4);
  for (const int bucket : {0, 1, 2}) {
    ASSERT_EQ(blocks_->Open(bucket).message(), "");
  }
  EXPECT_EQ(blocks_->bytes(), (6 + 2) * kBucket * 4);
  for (const int bucket : {0, 1, 2}) {
    ASSERT_EQ(blocks_->Discard(bucket).message(), "");
  }
  ASSERT_EQ(device_->Synchronize().message(), "");
  ASSERT_EQ(blocks_->Open(3).message(), "");
  EXPECT_EQ(blocks_->bytes(), (6 + 1) * kBucket * 4);
}

// A release that is planned for an operation of several buckets may have happened for the first of
// them.
TEST_F(GatherBlocksTest, ABucketThatMadeRoomIsNotReleasedAgain) {
  GatherLimits limits{.live_max = 4 * kBucket, .reuse_max = 0, .prefetch_max = 0};
  ASSERT_EQ(MakeBlocks(limits.live_max).message(), "");
  const GatherBlocks& blocks = *blocks_;
  auto shard = DeviceMemory::Create(*device_, kBuckets * kBucket * 4, "weights");
  ASSERT_TRUE(shard.ok()) << shard.status();
  auto memory = GatherBlocks::Create(
      *device_, *group_, *flat_, *plan_,
      {.data = static_cast<std::byte*>((*shard)->data()), .symmetric = nullptr, .device = *shard},
      {limits.live_max, /*timeout_seconds=*/20});
  ASSERT_TRUE(memory.ok()) << memory.status();
  auto live =
      LiveParameters::Create(*group_, *flat_, *plan_, limits, {}, *std::move(memory), /*units=*/{});
  ASSERT_TRUE(live.ok()) << live.status();
  const auto read = [&](int64_t first, int64_t last) {
    (*live)->BeforeRead(first * kBucket, last * kBucket);
    (*live)->AfterRead(first * kBucket, last * kBucket);
  };
  for (const int64_t bucket : {6, 7, 8, 9}) {
    read(bucket, bucket + 1);
  }
  ASSERT_EQ((*live)->Invalidate().message(), "");  // They keep their memory.
  (*live)->BeginPass(plan::GatherSchedule::Pass::kEvaluation);
  for (const int64_t bucket : {3, 2, 1}) {
    read(bucket, bucket + 1);
  }
  read(4, 6);
  for (const int64_t bucket : {0, 7, 8, 2, 3}) {
    read(bucket, bucket + 1);
  }
  EXPECT_EQ((*live)->status().message(), "");
  EXPECT_LE((*live)->bytes(), blocks.bytes());
}

TEST_F(GatherBlocksTest, TheLimitBoundsWhatIsTakenAtTheStart) {
  ASSERT_EQ(MakeBlocks(int64_t{1} << 40).message(), "");
  EXPECT_EQ(blocks_->bytes(), kBuckets * kBucket * 4) << "no more than there are buckets";
}

TEST_F(GatherBlocksTest, AGpuThatIsFullSaysWhatTheMemoryWasFor) {
  cuda_.LimitMemory(kBucket * 4);
  const absl::Status full = MakeBlocks(2 * kBucket);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(full.message(), HasSubstr("gathered weights (stage3_max_live_parameters)"));
}

}  // namespace
}  // namespace dtrain::gather_blocks_test
