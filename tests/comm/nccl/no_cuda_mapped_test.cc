// A CPU rank maps no CUDA library. A program that links and uses comm, also its NCCL group, opens
// none until it asks for the plugin.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/file.h"
#include "base/system/mapped_libraries.h"
#include "comm/group.h"
#include "comm/nccl/plugin.h"
#include "tests/comm/nccl/forked_ranks.h"
#include "tests/testing/cuda_libraries.h"

namespace dtrain::comm::no_cuda_mapped_test {
namespace {

std::vector<std::string> CudaLibraries() {
  std::vector<std::string> found;
  const auto mapped = MappedLibraries();
  EXPECT_TRUE(mapped.ok()) << mapped.status();
  for (const std::string& path : *mapped) {
    if (IsCudaLibrary(path)) {
      found.push_back(path);
    }
  }
  return found;
}

TEST(CpuRank, MapsNoCudaLibraryAlsoAfterHostAndFakeNcclGroups) {
  EXPECT_THAT(CudaLibraries(), testing::IsEmpty());
  auto group = CreateHostGroup(nullptr, {});
  ASSERT_TRUE(group.ok()) << group.status();
  float value = 2;
  ASSERT_TRUE((*group)
                  ->AllReduce({&value, sizeof(value), DType::kFloat32, {}}, ReduceOp::kSum)
                  ->Wait()
                  .ok());
  RunRanks(1, [](FakeRank& self) {
    self.store = nullptr;
    EXPECT_NE(self.MakeGroup(), nullptr);
    EXPECT_THAT(CudaLibraries(), testing::IsEmpty());
  });
  EXPECT_THAT(CudaLibraries(), testing::IsEmpty());
}

TEST(Plugin, AMissingOneNamesTheFoldersAndWhatToDo) {
  const auto plugin = OpenCudaPluginIn({"/nowhere", "/nor/here"});
  EXPECT_EQ(plugin.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(plugin.status().message()),
              testing::AllOf(testing::HasSubstr("/nowhere or /nor/here"),
                             testing::HasSubstr("libdtrain_cuda.so"),
                             testing::HasSubstr("DTRAIN_PLUGIN_DIR")));
  EXPECT_THAT(CudaLibraries(), testing::IsEmpty());
}

TEST(Plugin, AFileThatIsNoLibraryIsReportedWithTheLoadersWords) {
  const std::string folder = testing::TempDir() + "/no_plugin_" + std::to_string(getpid());
  ASSERT_TRUE(MakeDirectories(folder).ok());
  ASSERT_TRUE(WriteFileAtomic(folder + "/libdtrain_cuda.so", "not a library").ok());
  const auto plugin = OpenCudaPluginIn({folder});
  EXPECT_EQ(plugin.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(plugin.status().message()), testing::HasSubstr("cannot be loaded"));
  unlink((folder + "/libdtrain_cuda.so").c_str());
  rmdir(folder.c_str());
}

}  // namespace
}  // namespace dtrain::comm::no_cuda_mapped_test
