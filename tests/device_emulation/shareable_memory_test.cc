// Device memory that other processes of the node can be given a handle of.
#include "comm/nccl/plugin/shareable_memory.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

#include "comm/nccl/plugin/driver_memory.h"
#include "tests/device_emulation/granting_driver.h"

namespace dtrain::comm::shareable_memory_test {
namespace {

using emulation::DevicesWithAccess;
using emulation::driver;
using emulation::kGranule;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ShareableMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override { driver = {}; }
  // Nothing stays, whatever was given and refused.
  void TearDown() override {
    EXPECT_EQ(driver.memories, 0);
    EXPECT_EQ(driver.addresses, 0);
    EXPECT_EQ(driver.mapped, 0);
    EXPECT_EQ(driver.mallocs, 0);
    EXPECT_THAT(driver.wrong, IsEmpty());
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

// ncclMemAlloc does the same for ranks of other nodes that the same NVLink fabric joins.
TEST_F(ShareableMemoryTest, HasAFabricHandleTooWhereTheDeviceHasThem) {
  driver.fabric = 1;
  driver.fabric_granule = 2 * kGranule;
  ASSERT_EQ(memory_.Malloc(&data_, kGranule + 1), CudaResult::kSuccess);
  EXPECT_EQ(driver.mallocs, 1) << "smaller than the granularity of such memory";
  EXPECT_EQ(memory_.Free(data_), CudaResult::kSuccess);
  ASSERT_EQ(memory_.Malloc(&data_, 2 * kGranule + 1), CudaResult::kSuccess);
  ASSERT_EQ(driver.created.size(), 1U);
  EXPECT_EQ(static_cast<int>(driver.created[0].requestedHandleTypes),
            CU_MEM_HANDLE_TYPE_FABRIC | CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  EXPECT_EQ(memory_.Free(data_), CudaResult::kSuccess);
}

// NCCL binds a registered range to a multicast object from its first byte to the end of its last
// granule, and only if it begins at a multiple of the granularity.
TEST_F(ShareableMemoryTest, IsOnePieceOfWholeGranulesAsNvlinkSharpNeeds) {
  driver.fabric = 1;
  driver.fabric_granule = 2 * kGranule;
  ASSERT_EQ(memory_.Malloc(&data_, 2 * kGranule + 1), CudaResult::kSuccess);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data_) % (2 * kGranule), 0U);
  std::memset(data_, 1, 4 * kGranule);
  EXPECT_EQ(driver.memories, 1);
  EXPECT_EQ(driver.mapped, 1);
  EXPECT_EQ(memory_.Free(data_), CudaResult::kSuccess);
}

// A device may report them where the system has no channel for them.
TEST_F(ShareableMemoryTest, HasAFileAloneWhereAFabricHandleIsRefused) {
  driver.fabric = 1;
  for (const CUresult refused :
       {CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_INVALID_VALUE}) {
    driver.fabric_memory = refused;
    driver.created.clear();
    ASSERT_EQ(memory_.Malloc(&data_, kGranule), CudaResult::kSuccess);
    ASSERT_EQ(driver.created.size(), 2U);
    EXPECT_EQ(driver.created[1].requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    EXPECT_EQ(driver.created[1].allocFlags.gpuDirectRDMACapable, 1);
    EXPECT_EQ(driver.mallocs, 0);
    EXPECT_EQ(memory_.Free(data_), CudaResult::kSuccess);
  }
}

TEST_F(ShareableMemoryTest, IsForTheCurrentDeviceAndThoseThatReachIt) {
  ASSERT_EQ(memory_.Malloc(&data_, kGranule), CudaResult::kSuccess);
  EXPECT_THAT(DevicesWithAccess(data_), ElementsAre(0, 1)) << "device 2 cannot";
  std::memset(data_, 1, kGranule);
  EXPECT_EQ(memory_.Free(data_), CudaResult::kSuccess);
}

TEST_F(ShareableMemoryTest, DoesWithoutAPeerThatIsRefused) {
  driver.peer_access = CUDA_ERROR_NOT_SUPPORTED;
  ASSERT_EQ(memory_.Malloc(&data_, kGranule), CudaResult::kSuccess);
  EXPECT_THAT(DevicesWithAccess(data_), ElementsAre(1));
  EXPECT_EQ(driver.mallocs, 0);
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

// cudaFree does so behind a kernel that failed, and while a stream of the device is captured.
TEST_F(ShareableMemoryTest, StaysWhereItIsWhenTheWaitFails) {
  ASSERT_EQ(memory_.Malloc(&data_, kGranule), CudaResult::kSuccess);
  driver.calls.clear();
  driver.waiting = cudaErrorStreamCaptureUnsupported;
  EXPECT_EQ(memory_.Free(data_), static_cast<CudaResult>(cudaErrorStreamCaptureUnsupported));
  EXPECT_THAT(driver.calls, ElementsAre("device 1", "wait", "device 1"));
  EXPECT_EQ(driver.mapped, 1);
  std::memset(data_, 1, kGranule);
  driver.waiting = cudaSuccess;
  EXPECT_EQ(memory_.Free(data_), CudaResult::kSuccess) << "as if it had not been tried";
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
  driver.mapping = CUDA_SUCCESS;
  driver.reserving = CUDA_ERROR_OUT_OF_MEMORY;
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

TEST_F(ShareableMemoryTest, IsTriedWithoutTakingAny) {
  EXPECT_EQ(DriverMemory::TryExportable(), CudaResult::kSuccess);
  EXPECT_EQ(driver.created.size(), 1U);
  driver.reserving = CUDA_ERROR_NOT_SUPPORTED;
  EXPECT_NE(DriverMemory::TryExportable(), CudaResult::kSuccess);
  driver.reserving = CUDA_SUCCESS;
  driver.mapping = CUDA_ERROR_NOT_SUPPORTED;
  EXPECT_NE(DriverMemory::TryExportable(), CudaResult::kSuccess);
}

// The calls of the runtime's own virtual memory.
TEST_F(ShareableMemoryTest, AddressesAndMemoryAreMappedForTheCurrentDevice) {
  CudaMemory* memory = nullptr;
  ASSERT_EQ(DriverMemory::Reserve(&data_, kGranule), CudaResult::kSuccess);
  ASSERT_EQ(DriverMemory::Create(&memory, kGranule), CudaResult::kSuccess);
  EXPECT_EQ(driver.created[0].requestedHandleTypes, CU_MEM_HANDLE_TYPE_NONE);
  ASSERT_EQ(DriverMemory::Map(data_, kGranule, memory), CudaResult::kSuccess);
  EXPECT_THAT(DevicesWithAccess(data_), ElementsAre(1));
  std::memset(data_, 1, kGranule);
  EXPECT_EQ(DriverMemory::Unmap(data_, kGranule), CudaResult::kSuccess);
  EXPECT_EQ(DriverMemory::Destroy(memory), CudaResult::kSuccess);
  EXPECT_EQ(DriverMemory::Free(data_, kGranule), CudaResult::kSuccess);
}

// Without it the tests above would prove less.
TEST_F(ShareableMemoryTest, TheDriverRefusesWhatCudaDoes) {
  CudaMemory* memory = nullptr;
  EXPECT_NE(DriverMemory::Reserve(&data_, kGranule + 1), CudaResult::kSuccess);
  EXPECT_NE(DriverMemory::Create(&memory, kGranule - 1), CudaResult::kSuccess);
  EXPECT_THAT(driver.wrong, ElementsAre("cuMemAddressReserve", "cuMemCreate"));
  driver.wrong.clear();
  ASSERT_EQ(DriverMemory::Reserve(&data_, kGranule), CudaResult::kSuccess);
  EXPECT_DEATH(std::memset(data_, 1, 1), "") << "nothing is mapped there";
  EXPECT_EQ(DriverMemory::Free(data_, kGranule), CudaResult::kSuccess);
}

}  // namespace
}  // namespace dtrain::comm::shareable_memory_test
