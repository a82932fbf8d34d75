#include "launcher/nodes/awake_time.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace dtrain::launcher::awake_time_test {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST(AwakeTime, GoesOnWithTheClockWhileLooksAreRegular) {
  AwakeTime awake(5 * kSecond, absl::Seconds(2));
  EXPECT_EQ(awake.Look(5 * kSecond), 5 * kSecond);
  EXPECT_EQ(awake.Look(6 * kSecond), 6 * kSecond);
  EXPECT_EQ(awake.Look(8 * kSecond), 8 * kSecond);
}

TEST(AwakeTime, CountsOfAnAbsenceNoMoreThanALook) {
  AwakeTime awake(0, absl::Seconds(2));
  EXPECT_EQ(awake.Look(60 * kSecond), 2 * kSecond);
  EXPECT_EQ(awake.Look(61 * kSecond), 3 * kSecond);
}

TEST(AwakeTime, NeverGoesBack) {
  AwakeTime awake(10 * kSecond, absl::Seconds(2));
  EXPECT_EQ(awake.Look(9 * kSecond), 10 * kSecond);
}

}  // namespace
}  // namespace dtrain::launcher::awake_time_test
