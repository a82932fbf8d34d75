// Deadlines on a clock that the test drives.
#include "base/deadline.h"

#include <gtest/gtest.h>

namespace dtrain::deadline_test {
namespace {

TEST(Deadline, ExpiresWhenItsClockGetsThere) {
  FakeClock clock;
  const Deadline deadline = Deadline::After(absl::Milliseconds(10), clock);
  EXPECT_FALSE(deadline.Expired());
  EXPECT_EQ(deadline.Remaining(), absl::Milliseconds(10));
  clock.Advance(absl::Milliseconds(9));
  EXPECT_FALSE(deadline.Expired());
  clock.Sleep(absl::Milliseconds(1));
  EXPECT_TRUE(deadline.Expired());
  clock.Advance(absl::Seconds(1));
  EXPECT_EQ(deadline.Remaining(), absl::ZeroDuration());
}

TEST(Deadline, InfiniteNeverExpires) {
  const Deadline deadline = Deadline::Infinite();
  EXPECT_TRUE(deadline.infinite());
  EXPECT_FALSE(deadline.Expired());
  EXPECT_EQ(deadline.Remaining(), absl::InfiniteDuration());
}

TEST(Deadline, PollTimeoutIsBoundedAndNeverEndsEarly) {
  FakeClock clock;
  EXPECT_EQ(Deadline::Infinite().PollTimeoutMs(500), 500);
  EXPECT_EQ(Deadline::After(absl::Microseconds(1), clock).PollTimeoutMs(), 1);  // Rounded up.
  EXPECT_EQ(Deadline::After(absl::Seconds(9), clock).PollTimeoutMs(), 1000);
  EXPECT_EQ(Deadline::After(absl::ZeroDuration(), clock).PollTimeoutMs(), 0);
  EXPECT_EQ(Deadline::After(-absl::Seconds(1), clock).PollTimeoutMs(), 0);
}

TEST(Deadline, EarlierTakesTheNearer) {
  FakeClock clock;
  const Deadline near = Deadline::After(absl::Seconds(1), clock);
  EXPECT_EQ(Earlier(near, Deadline::Infinite()).Remaining(), absl::Seconds(1));
  EXPECT_EQ(Earlier(Deadline::After(absl::Seconds(5), clock), near).Remaining(), absl::Seconds(1));
}

TEST(RealClock, MonotonicTimeDoesNotGoBack) {
  const int64_t before = Clock::Real().MonotonicNanos();
  EXPECT_GE(Clock::Real().MonotonicNanos(), before);
  EXPECT_GT(Clock::Real().WallTime(), absl::FromUnixSeconds(1'600'000'000));
}

}  // namespace
}  // namespace dtrain::deadline_test
