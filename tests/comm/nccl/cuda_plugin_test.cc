// The CUDA plugin as built: it loads on every machine, with or without a driver.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/system/mapped_libraries.h"
#include "tests/comm/nccl/built_plugin.h"

namespace dtrain::comm::cuda_plugin_test {
namespace {

TEST(CudaPlugin, LoadsWithoutADriverAndSaysWhetherThereIsAGpu) {
  Plugin& plugin = BuiltPlugin();
  EXPECT_THAT(plugin.cuda().Description(), testing::HasSubstr("CUDA runtime 1"));
  EXPECT_NE(plugin.kernel_table(), nullptr);
  const auto count = plugin.DeviceCount();
  if (!count.ok()) {
    EXPECT_EQ(count.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(count.status().message()),
                testing::HasSubstr("no GPU can be used: cuda"));
  }
}

TEST(CudaPlugin, OpensNcclWhereTheBuildFoundIt) {
  const auto seams = BuiltPlugin().seams();
  if (!seams.ok()) {  // There may be an nccl.h and no NCCL.
    EXPECT_THAT(std::string(seams.status().message()),
                testing::HasSubstr("NCCL could not be loaded"));
    return;
  }
  int version = 0;
  EXPECT_EQ(seams->nccl->GetVersion(&version), NcclResult::kSuccess);
  EXPECT_GE(version, 21900);
  EXPECT_THAT(seams->nccl->Description(), testing::HasSubstr("libnccl.so"));
  EXPECT_NE(seams->kernels.sum_of_squares, nullptr);
}

}  // namespace
}  // namespace dtrain::comm::cuda_plugin_test
