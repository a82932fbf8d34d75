#include "runtime/engine/agreement.h"

#include <gtest/gtest.h>

#include <limits>

namespace dtrain::agreement_test {
namespace {

TEST(AgreementTest, SumsInRankOrderAndTakesTheFirstSignal) {
  std::vector<StepVote> votes(3);
  for (int i = 0; i < 3; ++i) {
    votes[static_cast<size_t>(i)].loss_sum = i + 0.5;
    votes[static_cast<size_t>(i)].count = 10 * i;
  }
  votes[1].stop_signal = 15;
  votes[2].stop_signal = 2;
  const auto verdict = Decide(votes);
  ASSERT_TRUE(verdict.ok());
  EXPECT_EQ(verdict->loss_sum, 4.5);
  EXPECT_EQ(verdict->count, 30);
  EXPECT_EQ(verdict->stop_signal, 15);
  EXPECT_TRUE(verdict->finite);
  EXPECT_FALSE(verdict->failed);
}

TEST(AgreementTest, NobodyUpdatesWhenOneFailedOrIsNotFinite) {
  std::vector<StepVote> votes(2);
  votes[1].failed = 1;
  EXPECT_EQ(Decide(votes)->failed_rank, 1);
  votes[1].failed = 0;
  votes[0].sum_of_squares = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(Decide(votes)->finite);
}

TEST(AgreementTest, SquaresOfShardsAreSummedAndThoseOfEverythingAreNot) {
  std::vector<StepVote> votes(3);
  for (StepVote& vote : votes) {
    vote.sum_of_squares = 2;
  }
  EXPECT_EQ(Decide(votes)->sum_of_squares, 2);
  for (StepVote& vote : votes) {
    vote.of_shard = 1;
  }
  EXPECT_EQ(Decide(votes)->sum_of_squares, 6);
  votes[2].sum_of_squares = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(Decide(votes)->finite);
}

TEST(AgreementTest, UnusedParametersAreComparedWhereEveryRankHasSome) {
  std::vector<StepVote> votes(3);
  votes[0].unused_parameters = votes[2].unused_parameters = 4;
  EXPECT_FALSE(Decide(votes)->compares_unused);
  votes[1].unused_parameters = 1;
  EXPECT_TRUE(Decide(votes)->compares_unused);
}

TEST(AgreementTest, RanksAtDifferentStepsOrEpochsAreAnError) {
  std::vector<StepVote> votes(2);
  votes[1].step = 4;
  EXPECT_EQ(Decide(votes).status().code(), absl::StatusCode::kInternal);
  votes[1].step = 0;
  votes[1].epoch = 1;
  EXPECT_EQ(Decide(votes).status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace dtrain::agreement_test
