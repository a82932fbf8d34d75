#include "comm/symmetric_buffer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "comm/shared_mapping.h"

namespace dtrain::comm::symmetric_buffer_test {
namespace {

TEST(SymmetricBufferTest, IsZeroedAndSharedThroughItsDescriptor) {
  auto buffer = SymmetricBuffer::Create((3 << 20) + 5, "gradients");
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  auto* const data = static_cast<char*>((*buffer)->data());
  EXPECT_EQ(data[(3 << 20) + 4], 0);
  auto other = SharedMapping::Map((*buffer)->fd(), (*buffer)->bytes(), "peer");
  ASSERT_TRUE(other.ok()) << other.status();
  data[12345] = 'x';
  EXPECT_EQ(other->data()[12345], 'x');
}

TEST(SymmetricBufferTest, LargeBuffersAreAlignedForHugePages) {
  auto buffer = SymmetricBuffer::Create(8 << 20, "large");
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*buffer)->data()) % (2 << 20), 0U);
}

TEST(SymmetricBufferTest, ItsSizeIsSealed) {
  auto buffer = SymmetricBuffer::Create(8192, "sealed");
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(ftruncate((*buffer)->fd(), 0), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST(SymmetricBufferTest, ACgroupsLimitCountsAsTheHostsMemoryDoes) {
  AvailableMemory memory;
  EXPECT_TRUE(CheckMemory(size_t{1} << 40, "gradients", memory).ok()) << "nothing is known";
  memory.machine_bytes = 1000;
  memory.cgroup_bytes = 600;
  EXPECT_TRUE(CheckMemory(600, "gradients", memory).ok());
  const absl::Status tight = CheckMemory(601, "gradients", memory);
  EXPECT_EQ(tight.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(tight.message(),
              ::testing::HasSubstr("needs 601 bytes, 600 are available within this cgroup's limit: "
                                   "raise the limit"));
  memory.cgroup_bytes = AvailableMemory::kNoLimit;
  EXPECT_TRUE(CheckMemory(601, "gradients", memory).ok());
  EXPECT_THAT(CheckMemory(1001, "gradients", memory).message(),
              ::testing::HasSubstr("1000 are available on this host: use fewer ranks"));
}

TEST(SymmetricBufferTest, MoreThanTheHostHasIsAnErrorThatNamesBothNumbers) {
  const auto buffer = SymmetricBuffer::Create(size_t{1} << 46, "model");
  EXPECT_EQ(buffer.status().code(), absl::StatusCode::kResourceExhausted) << buffer.status();
  EXPECT_THAT(
      std::string(buffer.status().message()),
      ::testing::AllOf(::testing::HasSubstr("model"), ::testing::HasSubstr("70368744177664 bytes"),
                       ::testing::HasSubstr("available")));
}

TEST(SymmetricBufferTest, AnEmptyOneHasAnAddress) {
  auto buffer = SymmetricBuffer::Create(0, "empty");
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  EXPECT_NE((*buffer)->data(), nullptr);
  EXPECT_EQ((*buffer)->bytes(), 0U);
}

}  // namespace
}  // namespace dtrain::comm::symmetric_buffer_test
