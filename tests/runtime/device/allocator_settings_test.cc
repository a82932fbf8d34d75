// Whether LibTorch's GPU allocator is told to take exportable memory: only where the driver gives
// it.
#include "runtime/device/allocator_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "comm/nccl/fake/fake_cuda.h"

namespace dtrain::allocator_settings_test {
namespace {

using ::testing::HasSubstr;

struct Said {
  std::string settings;
  std::string log;
};

Said SettingsWhere(comm::CudaResult exportable, const Environment& environment) {
  comm::FakeCuda cuda;
  cuda.SetExportableMemory(exportable);
  ::testing::internal::CaptureStderr();
  Said said;
  said.settings = AllocatorSettings(cuda, environment);
  said.log = ::testing::internal::GetCapturedStderr();
  return said;
}

TEST(AllocatorSettings, BlocksGrowWhereTheDriverGivesSuchMemory) {
  const Said said = SettingsWhere(comm::CudaResult::kSuccess, {});
  EXPECT_EQ(said.settings, "expandable_segments:True");
  EXPECT_EQ(said.log, "");
}

TEST(AllocatorSettings, AContainerThatRefusesSuchMemoryKeepsLibTorchsDefaults) {
  constexpr auto kNotSupported = static_cast<comm::CudaResult>(801);
  const Said said = SettingsWhere(kNotSupported, {});
  EXPECT_EQ(said.settings, "");
  EXPECT_THAT(said.log, HasSubstr("no memory that can be exported"));
}

TEST(AllocatorSettings, WhatTheUserSaidCountsAndNothingIsTried) {
  constexpr auto kNotSupported = static_cast<comm::CudaResult>(801);
  for (const char* const name : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
    const Said said = SettingsWhere(kNotSupported, {{name, "expandable_segments:True"}});
    EXPECT_EQ(said.settings, "");
    EXPECT_EQ(said.log, "");
  }
}

}  // namespace
}  // namespace dtrain::allocator_settings_test
