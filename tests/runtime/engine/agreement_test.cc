#include "runtime/engine/agreement.h"

#include <gtest/gtest.h>

#include <cmath>
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

TEST(AgreementTest, TheFirstOfSeveralRanksIsNamedAndOneIsEnough) {
  std::vector<StepVote> votes(4);
  EXPECT_FALSE(Decide(votes)->failed);
  EXPECT_EQ(Decide(votes)->failed_rank, -1);
  EXPECT_FALSE(Decide(votes)->buffers_changed);
  votes[1].failed = votes[3].failed = 1;
  votes[1].lacks_spare = votes[2].lacks_spare = 1;
  votes[2].buffers_changed = 1;
  for (size_t rank = 0; rank < votes.size(); ++rank) {
    votes[rank].samples = static_cast<int64_t>(rank) + 5;
  }
  const auto verdict = Decide(votes);
  ASSERT_TRUE(verdict.ok());
  EXPECT_TRUE(verdict->failed);
  EXPECT_EQ(verdict->failed_rank, 1);
  EXPECT_EQ(verdict->rank_without_spare, 1);
  EXPECT_TRUE(verdict->buffers_changed);
  EXPECT_EQ(verdict->samples, 26);
}

TEST(AgreementTest, WhatAnyRanksSaveSaysIsHeard) {
  std::vector<StepVote> votes(3);
  EXPECT_EQ(Decide(votes)->save, 0U);
  votes[1].save = 1;
  votes[2].save = 4;
  EXPECT_EQ(Decide(votes)->save, 5U);
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

TEST(AgreementTest, AnEvaluationGoesOnWhileSomeRankHasABatch) {
  std::vector<StepVote> votes(3);
  EXPECT_EQ(Decide(votes)->ranks_with_batch, 0);
  EXPECT_EQ(Decide(votes)->rank_without_spare, -1);
  votes[0].has_batch = votes[2].has_batch = 1;
  votes[1].lacks_spare = 1;
  EXPECT_EQ(Decide(votes)->ranks_with_batch, 2);
  EXPECT_EQ(Decide(votes)->rank_without_spare, 1);
}

TEST(AgreementTest, AStepOfNoSampleHasNoLossAndUpdatesNothing) {
  std::vector<StepVote> votes(2);
  votes[0].sum_of_squares = votes[1].sum_of_squares = 4;
  EXPECT_FALSE(Decide(votes)->updates());
  EXPECT_TRUE(std::isnan(Decide(votes)->loss()));
  votes[1].loss_sum = 6;
  votes[1].count = 4;
  EXPECT_TRUE(Decide(votes)->updates());
  EXPECT_EQ(Decide(votes)->loss(), 1.5);
  votes[0].sum_of_squares = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(Decide(votes)->updates());
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
