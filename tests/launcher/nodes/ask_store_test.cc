// Calls of a store that stops together with the agent that makes them.
#include "launcher/nodes/ask_store.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::launcher::ask_store_test {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

// A store whose n-th call takes the n-th of `times`. Calls that take less than they may are
// answered.
class AskStoreTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::string> Ask(const std::vector<absl::Duration>& times) {
    return AskStore(
        [this, &times](Deadline deadline) -> absl::StatusOr<std::string> {
          allowed_.push_back(deadline.Remaining());
          const absl::Duration time = times.at(allowed_.size() - 1);
          clock_.Advance(time);
          if (time < allowed_.back()) {
            return "the answer";
          }
          return absl::DeadlineExceededError("the store did not answer in time");
        },
        clock_);
  }

  FakeClock clock_;
  std::vector<absl::Duration> allowed_;  // How long each call was allowed to take.
};

TEST_F(AskStoreTest, AnAnswerInTimeIsTheFirst) {
  EXPECT_TRUE(Ask({absl::Milliseconds(1)}).ok());
  EXPECT_THAT(allowed_, ElementsAre(kStoreCallTimeout));
}

TEST_F(AskStoreTest, ACallThatWasStoppedForLongerThanItsTimeIsMadeAgain) {
  for (const int milliseconds : {10'000, 10'001, 10'500, 10'999, 11'000, 60'000, 600'000}) {
    allowed_.clear();
    EXPECT_TRUE(Ask({absl::Milliseconds(milliseconds), absl::Milliseconds(20)}).ok())
        << milliseconds << " ms";
    EXPECT_THAT(allowed_, SizeIs(2));
  }
}

TEST_F(AskStoreTest, AStoreThatIsSilentIsGivenUpASecondLater) {
  const int64_t began = clock_.MonotonicNanos();
  EXPECT_EQ(Ask({absl::Seconds(10), absl::Seconds(1)}).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(absl::Nanoseconds(clock_.MonotonicNanos() - began), absl::Seconds(11));
}

TEST_F(AskStoreTest, OneThatIsStoppedAgainAndAgainIsGivenUpToo) {
  EXPECT_EQ(Ask({absl::Minutes(1), absl::Minutes(1), absl::Minutes(1)}).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(allowed_, SizeIs(3));
}

TEST_F(AskStoreTest, AnotherErrorIsTheAnswer) {
  int calls = 0;
  const absl::Status gone = AskStore([&calls](Deadline) {
    ++calls;
    return absl::UnavailableError("the store is gone");
  });
  EXPECT_EQ(gone.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace dtrain::launcher::ask_store_test
