#include "runtime/device/choose_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dtrain::choose_device_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

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
  const absl::Status none =
      ChooseDevice("cuda", {.driver = true, .why_none = "no plugin, build it"}).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(none.message(), "device is \"cuda\" and no plugin, build it; or set device to \"cpu\"");
}

TEST(ChooseDeviceTest, OfTheCausesOfNoGpuTheOneThatHoldsIsNamed) {
  const absl::Status error = absl::FailedPreconditionError("no GPU can be used: error 999");
  const std::string old = WhyNoGpu(error, {.driver = 12020, .runtime = 13000});
  EXPECT_THAT(old, HasSubstr("the driver knows CUDA 12.2 and the runtime is CUDA 13.0; install"));
  EXPECT_THAT(old, Not(HasSubstr("CUDA_VISIBLE_DEVICES")));
  const std::string hidden =
      WhyNoGpu(error, {.driver = 13000, .runtime = 13000, .visible_devices = "7"});
  EXPECT_THAT(hidden, HasSubstr("CUDA_VISIBLE_DEVICES is \"7\"; unset it"));
  EXPECT_THAT(hidden, Not(HasSubstr("install a driver")));
  EXPECT_EQ(WhyNoGpu(error, {.driver = 13000, .runtime = 13000, .devices = 1}),
            "no GPU can be used: error 999")
      << "what the driver sees and CUDA cannot use is CUDA's to say";
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
}  // namespace dtrain::choose_device_test
