// Device memory that other processes of the node can be given a handle of.
#include "comm/nccl/plugin/shareable_memory.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/device_emulation/granting_driver.h"

namespace dtrain::comm::shareable_memory_test {
namespace {

using emulation::driver;
using emulation::kGranule;
using ::testing::ElementsAre;

class ShareableMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override { driver = {}; }
  // Nothing stays, whatever was given and refused.
  void TearDown() override {
    EXPECT_EQ(driver.memories, 0);
    EXPECT_EQ(driver.addresses, 0);
    EXPECT_EQ(driver.mapped, 0);
    EXPECT_EQ(driver.mallocs, 0);
  }

  ShareableMemory memory_;
  void* data_ = nullptr;
};

TEST_F(ShareableMemoryTest, HasAHandleForOtherProcessesAndSuitsRdma) {
  ASSERT_EQ(memory_.Malloc(&data_, kGranule + 1), CudaResult::kSuccess);
  ASSERT_EQ(driver.created.size(), 1U);
  const CUmemAllocationProp& asked = driver.created[0];
  EXPECT_EQ(asked.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  EXPECT_EQ(asked.allocFlags.gpuDirectRDMACapable, 1);
  EXPECT_EQ(asked.location.id, 1) << "the current device";
  EXPECT_EQ(driver.mallocs, 0);
  EXPECT_EQ(memory_.Free(data_), CudaResult::kSuccess);
}

TEST_F(ShareableMemoryTest, AsksForNoRdmaWhereTheDeviceHasNone) {
  driver.rdma = 0;
  ASSERT_EQ(memory_.Malloc(&data_, kGranule), CudaResult::kSuccess);
  EXPECT_EQ(driver.created[0].allocFlags.gpuDirectRDMACapable, 0);
  EXPECT_EQ(memory_.Free(data_), CudaResult::kSuccess);
}

// A kernel may still write there, and cudaFree waits too.
TEST_F(ShareableMemoryTest, WaitsForItsDeviceBeforeItIsUnmapped) {
  ASSERT_EQ(memory_.Malloc(&data_, kGranule), CudaResult::kSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  driver.calls.clear();
  EXPECT_EQ(memory_.Free(data_), CudaResult::kSuccess);
  EXPECT_THAT(driver.calls,
              ElementsAre("device 1", "wait", "device 0", "unmap", "free addresses", "release"));
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
}

TEST_F(ShareableMemoryTest, IsCudaMallocsWhereSuchMemoryIsRefused) {
  driver.exportable = CUDA_ERROR_NOT_PERMITTED;
  ASSERT_EQ(memory_.Malloc(&data_, kGranule), CudaResult::kSuccess);
  EXPECT_EQ(driver.mallocs, 1);
  EXPECT_EQ(memory_.Free(data_), CudaResult::kSuccess);
  driver.exportable = CUDA_SUCCESS;
  driver.mapping = CUDA_ERROR_NOT_SUPPORTED;
  ASSERT_EQ(memory_.Malloc(&data_, kGranule), CudaResult::kSuccess);
  EXPECT_EQ(driver.mallocs, 1);
  EXPECT_EQ(memory_.Free(data_), CudaResult::kSuccess);
}

TEST_F(ShareableMemoryTest, TellsThatMemoryIsOutAndTakesNoneElsewhere) {
  driver.exportable = CUDA_ERROR_OUT_OF_MEMORY;
  EXPECT_EQ(memory_.Malloc(&data_, kGranule), CudaResult::kOutOfMemory);
}

// A granule for each number would waste most of it.
TEST_F(ShareableMemoryTest, LeavesSmallRequestsToCudaMalloc) {
  ASSERT_EQ(memory_.Malloc(&data_, kGranule - 1), CudaResult::kSuccess);
  EXPECT_EQ(driver.mallocs, 1);
  EXPECT_EQ(memory_.Free(data_), CudaResult::kSuccess);
  EXPECT_EQ(memory_.Free(nullptr), CudaResult::kSuccess);
}

}  // namespace
}  // namespace dtrain::comm::shareable_memory_test
