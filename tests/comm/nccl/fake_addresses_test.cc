// The fake GPU's virtual memory: calls that CUDA would not allow are errors, and an access to
// addresses without memory ends the process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "comm/nccl/fake/fake_cuda.h"

namespace dtrain::comm::fake_addresses_test {
namespace {

constexpr CudaResult kOk = CudaResult::kSuccess;
constexpr size_t kGranule = FakeAddresses::kGranularity;

class FakeAddressesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cuda_.ReserveAddresses(&data_, 4 * kGranule), kOk);
    ASSERT_EQ(cuda_.CreateMemory(&memory_, 2 * kGranule), kOk);
  }
  char* At(size_t granule) { return static_cast<char*>(data_) + granule * kGranule; }
  void ExpectRefused(CudaResult result) {
    EXPECT_EQ(result, CudaResult::kInvalidValue);
    EXPECT_EQ(cuda_.violations().size(), ++violations_);
  }

  FakeCuda cuda_;
  void* data_ = nullptr;
  CudaMemory* memory_ = nullptr;
  size_t violations_ = 0;
};

TEST_F(FakeAddressesTest, MemoryKeepsItsBytesWhereverItIsMapped) {
  ASSERT_EQ(cuda_.MapMemory(At(0), 2 * kGranule, memory_), kOk);
  std::memset(At(0), 7, 2 * kGranule);
  EXPECT_TRUE(cuda_.IsDeviceMemory(At(0), 2 * kGranule));
  EXPECT_FALSE(cuda_.IsDeviceMemory(At(1), 2 * kGranule));
  ASSERT_EQ(cuda_.UnmapMemory(At(0), 2 * kGranule), kOk);
  EXPECT_FALSE(cuda_.IsDeviceMemory(At(0), 1));
  ASSERT_EQ(cuda_.MapMemory(At(3), kGranule, memory_), kOk);
  EXPECT_EQ(*At(3), 7);
  EXPECT_EQ(cuda_.unmaps(), 1);
  ASSERT_EQ(cuda_.UnmapMemory(At(3), kGranule), kOk);
  ASSERT_EQ(cuda_.DestroyMemory(memory_), kOk);
  ASSERT_EQ(cuda_.FreeAddresses(data_, 4 * kGranule), kOk);
  EXPECT_EQ(cuda_.live_handles(), 0);
}

TEST_F(FakeAddressesTest, WhatCudaWouldNotAllowIsRefusedAndNoted) {
  ExpectRefused(cuda_.MapMemory(At(0) + 8, kGranule, memory_));
  ExpectRefused(cuda_.MapMemory(At(0), 3 * kGranule, memory_));
  ExpectRefused(cuda_.MapMemory(At(3), 2 * kGranule, memory_));
  ExpectRefused(cuda_.UnmapMemory(At(0), kGranule));
  ASSERT_EQ(cuda_.MapMemory(At(1), 2 * kGranule, memory_), kOk);
  CudaMemory* other = nullptr;
  ASSERT_EQ(cuda_.CreateMemory(&other, kGranule), kOk);
  ExpectRefused(cuda_.MapMemory(At(2), kGranule, other));    // There is memory already.
  ExpectRefused(cuda_.MapMemory(At(3), kGranule, memory_));  // It is mapped elsewhere.
  ExpectRefused(cuda_.UnmapMemory(At(1), kGranule));         // This is half of it.
  ExpectRefused(cuda_.DestroyMemory(memory_));
  ExpectRefused(cuda_.FreeAddresses(data_, 4 * kGranule));
}

TEST_F(FakeAddressesTest, AGpuHasAsMuchMemoryAsItIsGiven) {
  cuda_.LimitMemory(3 * kGranule);
  CudaMemory* more = nullptr;
  EXPECT_EQ(static_cast<int>(cuda_.CreateMemory(&more, 2 * kGranule)), 2);
  ASSERT_EQ(cuda_.DestroyMemory(memory_), kOk);
  EXPECT_EQ(cuda_.CreateMemory(&more, 2 * kGranule), kOk);
  EXPECT_TRUE(cuda_.violations().empty()) << "to run out of memory is nobody's mistake";
}

TEST_F(FakeAddressesTest, ATouchWithoutMemoryEndsTheProcess) {
  EXPECT_DEATH({ *static_cast<volatile char*>(At(0)) = 1; }, "");
}

}  // namespace
}  // namespace dtrain::comm::fake_addresses_test
