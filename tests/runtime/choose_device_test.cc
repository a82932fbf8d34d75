#include "runtime/device/choose_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dtrain {
namespace {

using ::testing::HasSubstr;

RankDevice Gpu(uint64_t node, char uuid) {
  RankDevice device{.node = node, .cuda = 1, .nccl = 1};
  device.uuid[0] = uuid;
  return device;
}

TEST(ChooseDeviceTest, AutoTakesAGpuWhereThereIsOneAndTheCpuElsewhere) {
  EXPECT_FALSE(ChooseDevice("auto", {})->cuda);
  EXPECT_FALSE(ChooseDevice("auto", {.driver = true, .why_none = "none"})->cuda);
  EXPECT_TRUE(ChooseDevice("auto", {.driver = true, .gpus = 1})->cuda);
  EXPECT_FALSE(ChooseDevice("cpu", {.driver = true, .gpus = 1})->cuda);
}

TEST(ChooseDeviceTest, TheLocalRankPicksTheGpuRoundAndRound) {
  for (const auto& [rank, gpus, index] :
       {std::tuple(0, 4, 0), std::tuple(3, 4, 3), std::tuple(1, 1, 0), std::tuple(5, 4, 1)}) {
    const auto choice = ChooseDevice("cuda", {.driver = true, .gpus = gpus, .local_rank = rank});
    EXPECT_EQ(choice->index, index) << "local rank " << rank << " of " << gpus << " GPUs";
  }
}

TEST(ChooseDeviceTest, CudaWithoutADriverOrAGpuIsAnErrorThatSaysWhatToDo) {
  EXPECT_THAT(ChooseDevice("cuda", {}).status().message(),
              HasSubstr("no NVIDIA driver is loaded on this machine"));
  const auto old = ChooseDevice(
      "cuda", {.driver = true,
               .why_none = "no GPU can be used: cudaErrorInsufficientDriver (CUDA runtime 13.0, "
                           "driver 12.2)"});
  EXPECT_EQ(old.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(old.status().message(), HasSubstr("CUDA runtime 13.0, driver 12.2"));
  EXPECT_THAT(old.status().message(), HasSubstr("must be updated"));
}

TEST(ChooseDeviceTest, Fp8IsForGpusThatHaveItsUnits) {
  for (const int capability : {89, 90, 100, 120, 0}) {
    EXPECT_TRUE(CheckFp8Units("a GPU", capability).ok()) << capability;
  }
  const absl::Status old = CheckFp8Units("NVIDIA A100-SXM4-80GB", 80);
  EXPECT_EQ(old.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(old.message(),
            "fp8.enabled needs a GPU with FP8 units (sm_89 or later: Ada, Hopper, Blackwell); "
            "NVIDIA A100-SXM4-80GB is sm_80: set fp8.enabled=false");
}

TEST(ChooseDeviceTest, NcclServesRanksWithAGpuEachAndNoOthers) {
  EXPECT_EQ(*ChooseTransport({RankDevice{}, RankDevice{}}), DeviceTransport::kNone);
  EXPECT_EQ(*ChooseTransport({Gpu(1, 'a'), Gpu(1, 'b')}), DeviceTransport::kNccl);
  EXPECT_EQ(*ChooseTransport({Gpu(1, 'a'), Gpu(2, 'a')}), DeviceTransport::kNccl);
  EXPECT_EQ(*ChooseTransport({Gpu(1, 'a'), Gpu(1, 'a')}), DeviceTransport::kStaged);
  EXPECT_EQ(*ChooseTransport({Gpu(1, 'a')}), DeviceTransport::kStaged) << "alone: nothing to send";
  RankDevice without_nccl = Gpu(1, 'b');
  without_nccl.nccl = 0;
  EXPECT_EQ(*ChooseTransport({Gpu(1, 'a'), without_nccl}), DeviceTransport::kStaged);
}

TEST(ChooseDeviceTest, ARankWithoutAGpuAmongOthersIsNamed) {
  const auto mixed = ChooseTransport({Gpu(1, 'a'), Gpu(1, 'b'), RankDevice{}});
  EXPECT_EQ(mixed.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(mixed.status().message(), HasSubstr("rank 2 trains on the CPU and rank 0 on a GPU"));
}

}  // namespace
}  // namespace dtrain
