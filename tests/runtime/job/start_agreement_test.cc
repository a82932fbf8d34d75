#include "runtime/job/start_agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "tests/testing/shortest.h"

namespace dtrain::start_agreement_test {
namespace {

using ::testing::HasSubstr;

// The result of each rank when they give `votes`; ranks are threads.
std::vector<absl::Status> Agree(const std::vector<absl::Status>& votes) {
  const std::unique_ptr<comm::Store> store = comm::NewMemoryStore();
  std::vector<absl::Status> results(votes.size());
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < votes.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      results[rank] = AgreeToStart(*store, static_cast<int>(rank), static_cast<int>(votes.size()),
                                   votes[rank], Deadline::After(absl::Seconds(20)));
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
  return results;
}

TEST(StartAgreementTest, RanksThatAllCanStartDo) {
  for (const absl::Status& result : Agree({{}, {}, {}, {}})) {
    EXPECT_TRUE(result.ok()) << result;
  }
}

TEST(StartAgreementTest, OneThatCannotEndsAllAtOnceByItsNameAndReason) {
  std::vector<absl::Status> results;
  const absl::Duration shortest = testing::ShortestOf(5, absl::Seconds(4), [&] {
    const absl::Time start = absl::Now();
    results = Agree(
        {{}, {}, absl::InvalidArgumentError("lr is 1 on rank 0"), absl::NotFoundError("other")});
    return absl::Now() - start;
  });
  EXPECT_LT(shortest, absl::Seconds(4)) << "nobody waits for the farewell's end";
  for (const size_t rank : {0U, 1U}) {
    EXPECT_EQ(results[rank].code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(results[rank].message()),
                HasSubstr("rank 2 cannot start: lr is 1 on rank 0"));
  }
  EXPECT_EQ(results[2], absl::InvalidArgumentError("lr is 1 on rank 0"));
  EXPECT_EQ(results[3], absl::NotFoundError("other")) << "its own, in its own words";
}

TEST(StartAgreementTest, ARankThatNeverComesIsNamedAtTheDeadline) {
  const std::unique_ptr<comm::Store> store = comm::NewMemoryStore();
  const absl::Status result =
      AgreeToStart(*store, 0, 2, {}, Deadline::After(absl::Milliseconds(50)));
  EXPECT_EQ(result.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(result.message()), HasSubstr("rank 1"));
}

}  // namespace
}  // namespace dtrain::start_agreement_test
