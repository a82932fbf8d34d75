// Saves beside training of an engine on a GPU, over the fakes: they hold, to the byte, what saves
// hold for which training stood still, and the thread that trains waits for no copy, nor for the
// end of the step that is saved. Copies run on a stream that is a thread, and start so late that an
// update which does not come behind them is seen in what is saved.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "checkpoint/commit/staging_pool.h"
#include "comm/nccl/fake/fake_cuda.h"
#include "runtime/checkpoint/device_copies.h"
#include "runtime/device/device.h"
#include "runtime/job/job_state.h"
#include "tests/runtime/testing/fake_device.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "tests/runtime/testing/journal_training.h"
#include "tests/runtime/testing/saved_step.h"

namespace dtrain::device_save_test {
namespace {

using testing::FakeGpu;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::JournalOutcome;
using testing::JournalTraining;
using testing::Net;
using testing::RankContext;
using testing::RecordsOf;
using testing::SavedStep;

// How late the device copies for the save of step 4: later than the next updates would come.
constexpr std::chrono::milliseconds kLate(60);
constexpr std::chrono::microseconds kSoon(100);

struct Way {
  const char* name;
  int ranks;
  std::vector<std::string> overrides;
  bool hangs = false;     // The device says nothing while the save of step 4 starts.
  int64_t bad_step = -1;  // Its gradient is not finite.
};

// Nine steps, of which the fourth and the eighth are saved. `fails`: the copies of the last rank.
JournalOutcome Train(const Way& way, const std::string& folder, bool async, bool fails = false) {
  comm::FakeFabric fabric;
  return testing::JournalOutcomeOf(
      way.ranks, folder, [&](RankContext& context, JournalOutcome& outcome) -> absl::Status {
        FakeGpu gpu(&fabric);
        const auto open = [&](RankContext& of, Job& job) {
          return gpu.Attach(job.state(), /*staged=*/false, of.group_options());
        };
        int before = 0;
        int waits = 0;
        JournalTraining own{.overrides = way.overrides};
        own.overrides.emplace_back("checkpoint.journal=off");
        own.overrides.push_back(absl::StrCat("checkpoint.async=", async ? "true" : "false"));
        own.bad_step = way.bad_step;
        own.after_step = [&](Net& /*net*/, int64_t step) {
          if (step == 4) {
            gpu.cuda.SlowDown(async ? std::chrono::microseconds(kLate) : kSoon);
          }
          if (step == 4 && fails && context.rank + 1 == way.ranks) {
            gpu.cuda.FailCopiesAfter(0);
          }
          gpu.cuda.Hang(step == 4 && async && way.hangs);
          before = gpu.cuda.synchronizations();
        };
        own.after_save = [&](int64_t /*step*/) {
          gpu.cuda.Hang(false);
          gpu.cuda.SlowDown(kSoon);
          waits += gpu.cuda.synchronizations() - before;
        };
        DT_RETURN_IF_ERROR(testing::TrainJournalled(context, folder, own, open, outcome));
        for (const auto& wrong : {gpu.cuda.violations(), gpu.nccl.violations()}) {
          if (!wrong.empty()) {
            return absl::InternalError(wrong.front());
          }
        }
        if (gpu.cuda.live_handles() != 0) {
          return absl::InternalError("something of the device was not freed");
        }
        return async && waits > 0
                   ? absl::InternalError(absl::StrCat("saves waited ", waits, " times"))
                   : absl::OkStatus();
      });
}

class DeviceSaveTest : public ::testing::TestWithParam<Way> {};

INSTANTIATE_TEST_SUITE_P(
    Ways, DeviceSaveTest,
    ::testing::Values(
        Way{"stage0_graphs", 1, {"cuda_graphs=true"}, /*hangs=*/true},
        Way{"stage1_bf16", 2, {"zero_optimization.stage=1", "bf16.enabled=true"}, /*hangs=*/true},
        // The checkpoint says that its last step has changed nothing.
        Way{"stage0_skipped", 2, {}, /*hangs=*/true, /*bad_step=*/4},
        Way{"stage3_own_buffers", 2, {"zero_optimization.stage=3", "module_buffers=local"}}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_P(DeviceSaveTest, HoldsWhatASaveHoldsForWhichTrainingStandsStill) {
  std::string saves[2];
  std::vector<double> losses[2];
  std::string second[2];  // It copies to the same memory; skipped if the first takes too long.
  for (const bool async : {false, true}) {
    const testing::TempFolder folder;
    losses[async ? 1 : 0] = Train(GetParam(), folder.path(), async).losses;
    saves[async ? 1 : 0] = SavedStep(folder.path(), 4) + SavedStep(folder.path(), 9);
    second[async ? 1 : 0] = SavedStep(folder.path(), 8);
    EXPECT_FALSE(SavedStep(folder.path(), 4).empty());
    // A checkpoint says how its last step ended.
    const int skipped = GetParam().bad_step > 0 ? 1 : 0;
    EXPECT_THAT(SavedStep(folder.path(), 4), HasSubstr(absl::StrCat(R"("skipped":)", skipped)));
    EXPECT_THAT(SavedStep(folder.path(), 4), HasSubstr(absl::StrCat(R"("updates":)", 4 - skipped)));
    EXPECT_THAT(SavedStep(folder.path(), 9), HasSubstr(absl::StrCat(R"("updates":)", 9 - skipped)));
  }
  EXPECT_EQ(losses[0].size(), 9U);
  EXPECT_EQ(losses[1], losses[0]);
  EXPECT_EQ(saves[1], saves[0]);
  if (!second[1].empty()) {
    EXPECT_EQ(second[1], second[0]);
  }
}

TEST(DeviceSaveFailureTest, ACopyThatFailsIsRecordedAndTrainingGoesOn) {
  const testing::TempFolder folder;
  const Way way{"stage0", 2, {}};
  EXPECT_EQ(Train(way, folder.path(), /*async=*/true, /*fails=*/true).losses.size(), 9U);
  EXPECT_EQ(SavedStep(folder.path(), 4), "");
  EXPECT_FALSE(SavedStep(folder.path(), 9).empty());
  EXPECT_THAT(
      RecordsOf(folder.path(), "error"),
      ::testing::AllOf(HasSubstr("save of step 4: rank 1: "), HasSubstr("cudaMemcpyAsync")));
}

// The compute stream is a thread too here, as on a GPU it is beside the host. It is on the second
// of two GPUs, which a thread must choose.
class DeviceCopiesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    CudaParts parts;
    parts.api = &cuda_;
    parts.index = 1;
    ASSERT_EQ(cuda_.SetDevice(parts.index), comm::CudaResult::kSuccess);
    ASSERT_EQ(cuda_.StreamCreate(&parts.compute_stream, /*high_priority=*/false),
              comm::CudaResult::kSuccess);
    parts.tensors = at::Device(at::kCPU);
    device_ = std::make_unique<Device>(parts);
    memory_ = *DeviceMemory::Create(*device_, kBytes, "a test");
    copies_ = *DeviceCopies::Create(*device_, absl::Seconds(20));
    block_ = copies_->MakeBlock();
    ASSERT_NE(block_, nullptr);
  }
  void TearDown() override {
    copies_->FreeBlock(block_);
    copies_.reset();
    memory_.reset();
    EXPECT_EQ(cuda_.StreamDestroy(device_->stream()), comm::CudaResult::kSuccess);
    EXPECT_THAT(cuda_.violations(), IsEmpty());
    EXPECT_EQ(cuda_.live_handles(), 0);
  }
  // Queued on the compute stream.
  void Fill(uint8_t value) {
    EXPECT_EQ(cuda_.FillAsync(memory_->data(), value, kBytes, device_->stream()),
              comm::CudaResult::kSuccess);
  }
  // The memory's parts, each a copy of its own.
  std::vector<checkpoint::BlockPart> Parts() const {
    std::vector<checkpoint::BlockPart> parts;
    for (size_t at = 0; at < kBytes; at += kBytes / 4) {
      const auto* const from = static_cast<const std::byte*>(memory_->data()) + at;
      parts.push_back({at, absl::MakeConstSpan(from, kBytes / 4)});
    }
    return parts;
  }
  static std::string Copied(const std::byte* block) {
    return {reinterpret_cast<const char*>(block), kBytes};
  }

  static constexpr size_t kBytes = 64;
  comm::FakeCuda cuda_{2};
  std::unique_ptr<Device> device_;
  std::shared_ptr<DeviceMemory> memory_;
  std::shared_ptr<DeviceCopies> copies_;
  std::byte* block_ = nullptr;
};

TEST_F(DeviceCopiesTest, ComeBehindWhatWasQueuedAndAheadOfTheNextUpdateAndNobodyWaits) {
  for (const uint8_t step : {uint8_t{1}, uint8_t{3}}) {
    const int64_t asked = cuda_.event_queries();
    cuda_.SlowDown(std::chrono::milliseconds(100));  // Copies that did not wait would all be early.
    Fill(step);
    cuda_.SlowDown(std::chrono::milliseconds(10));
    ASSERT_TRUE(copies_->Begin().ok());
    ASSERT_TRUE(copies_->Copy(Parts(), block_).ok());
    copies_->HoldUpdate();
    Fill(static_cast<uint8_t>(step + 1));
    EXPECT_EQ(cuda_.synchronizations(), step / 3);  // One a round, below.
    EXPECT_EQ(cuda_.event_queries(), asked);
    cuda_.SlowDown(std::chrono::microseconds(0));
    ASSERT_TRUE(copies_->AwaitBegin().ok());
    ASSERT_TRUE(copies_->Await(block_).ok());
    EXPECT_EQ(Copied(block_), std::string(kBytes, static_cast<char>(step)));
    ASSERT_TRUE(device_->Synchronize().ok());
    EXPECT_EQ(*static_cast<const uint8_t*>(memory_->data()), step + 1);
  }
}

TEST_F(DeviceCopiesTest, TheThreadThatWritesNeedNotHaveChosenTheDevice) {
  Fill(7);
  ASSERT_TRUE(copies_->Begin().ok());
  std::byte* const block = block_;
  std::byte* own = nullptr;
  std::thread writer([&] {
    own = copies_->MakeBlock();
    for (std::byte* const to : {block, own}) {
      EXPECT_TRUE(copies_->Copy(Parts(), to).ok());
      EXPECT_TRUE(copies_->Await(to).ok());
    }
  });
  writer.join();
  EXPECT_EQ(Copied(block), std::string(kBytes, '\x07'));
  EXPECT_EQ(Copied(own), std::string(kBytes, '\x07'));
  copies_->FreeBlock(own);
}

TEST_F(DeviceCopiesTest, ADeviceThatHangsIsWaitedForOnceAndTheNextSnapshotBeginsAnew) {
  const auto copies = *DeviceCopies::Create(*device_, absl::Milliseconds(50));
  std::byte* const block = copies->MakeBlock();
  ASSERT_TRUE(copies->Begin().ok());
  ASSERT_TRUE(copies->Copy(Parts(), block).ok());
  cuda_.Hang(true);
  const absl::Status hangs = copies->AwaitBegin();
  EXPECT_EQ(hangs.code(), absl::StatusCode::kDeadlineExceeded) << hangs;
  EXPECT_THAT(std::string(hangs.message()), HasSubstr("a copy for a checkpoint"));
  const int64_t asked = cuda_.event_queries();
  EXPECT_EQ(copies->Await(block), hangs);
  EXPECT_EQ(cuda_.event_queries(), asked);
  cuda_.Hang(false);
  ASSERT_TRUE(copies->Begin().ok());
  EXPECT_TRUE(copies->AwaitBegin().ok());
  EXPECT_TRUE(copies->Await(block).ok());
  copies->FreeBlock(block);
}

}  // namespace
}  // namespace dtrain::device_save_test
