#include "base/console/wait_notice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

namespace dtrain::wait_notice_test {
namespace {

using ::testing::HasSubstr;

constexpr WaitNoticeTimes kSoon = {absl::Milliseconds(1), absl::Milliseconds(1)};

TEST(WaitNotice, SaysTheLineAgainAndAgainWhileTheWaitLasts) {
  ::testing::internal::CaptureStderr();
  {
    std::promise<void> third;
    int calls = 0;
    const WaitNotice notice(
        [&] {
          if (++calls == 3) {  // Two lines are written by then.
            third.set_value();
          }
          return "line " + std::to_string(calls);
        },
        kSoon);
    third.get_future().wait();
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("line 1; waiting for 0 so far\n"));
  EXPECT_THAT(said, HasSubstr("line 2; waiting for 0 so far\n"));
}

TEST(WaitNotice, AnEmptyLineIsNotWritten) {
  ::testing::internal::CaptureStderr();
  {
    std::promise<void> third;
    int calls = 0;
    const WaitNotice notice(
        [&]() -> std::string {
          if (++calls == 3) {
            third.set_value();
          }
          return "";
        },
        kSoon);
    third.get_future().wait();
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(WaitNotice, AWaitThatEndsSoonIsSilentAndEndsAtOnce) {
  ::testing::internal::CaptureStderr();
  { const WaitNotice notice("never said"); }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace dtrain::wait_notice_test
