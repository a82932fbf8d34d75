#include "runtime/job/exception_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>

#include "ATen/ATen.h"
#include "base/status.h"
#include "runtime/job/error_file.h"

namespace dtrain::exception_status_test {
namespace {

using ::testing::HasSubstr;

absl::Status StatusOf(void (*body)()) {
  return CallSafely([] { return std::string("in the loss function"); },
                    [body] {
                      body();
                      return absl::OkStatus();
                    });
}

// Only a rank that claims its error is asked whether it is one of its own host.
TEST(IsFirstHand, AFailedDeviceOfTheHostIsButALostPeerIsNot) {
  for (const int number : {EIO, ENOSPC, EDQUOT, EROFS, EACCES, ENOENT}) {
    EXPECT_TRUE(IsFirstHand(ErrnoStatus(number, "corpus.bin"))) << number;
    EXPECT_TRUE(IsFirstHand(Annotate(ErrnoStatus(number, "corpus.bin"), "step 7"))) << number;
  }
  EXPECT_FALSE(IsFirstHand(ErrnoStatus(ECONNRESET, "rank 1")));
  EXPECT_FALSE(IsFirstHand(absl::UnavailableError("node 1 has failed: Input/output error")))
      << "the words of another host";
  EXPECT_FALSE(IsFirstHand(absl::AbortedError("rank 1 has failed")));
  EXPECT_FALSE(IsFirstHand(absl::CancelledError("stopped by SIGTERM")));
  EXPECT_FALSE(IsFirstHand(absl::OkStatus()));
}

// Memory that the host does not have is the same fault whoever asked for it, and has one exit code.
TEST(ExceptionStatusTest, MemoryThatLibTorchIsRefusedIsExhaustedLikeAnyOther) {
  const absl::Status libtorch = StatusOf([] { at::empty({int64_t{1} << 55}); });
  EXPECT_EQ(libtorch.code(), absl::StatusCode::kResourceExhausted) << libtorch;
  EXPECT_EQ(ExitCodeFor(libtorch), kExitTemporary);
  EXPECT_THAT(std::string(libtorch.message()), HasSubstr("in the loss function"));
  EXPECT_THAT(std::string(libtorch.message()), HasSubstr("can't allocate memory"));

  const absl::Status standard = StatusOf([] { throw std::bad_alloc(); });
  EXPECT_EQ(standard.code(), libtorch.code()) << standard;
}

TEST(ExceptionStatusTest, WhatTheProgramDoesWrongIsAnInvalidArgument) {
  const absl::Status shapes = StatusOf([] { at::ones({2, 3}).matmul(at::ones({2, 3})); });
  EXPECT_EQ(shapes.code(), absl::StatusCode::kInvalidArgument) << shapes;
  EXPECT_EQ(ExitCodeFor(shapes), kExitUsage);
  const absl::Status own = StatusOf([] { throw std::runtime_error("no such label"); });
  EXPECT_EQ(own.code(), absl::StatusCode::kInvalidArgument) << own;
  EXPECT_THAT(std::string(own.message()), HasSubstr("no such label"));
}

}  // namespace
}  // namespace dtrain::exception_status_test
