// The math that the verdict's kernel runs on every thread, on the host.
#include "kernels/optimizer/step_verdict.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>

#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/lion.h"

namespace dtrain::kernels::step_verdict_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(StepVerdictTest, LossesAddUpAndSquaresOnlyWhereRanksHaveShards) {
  const StepTally tallies[] = {{1.5, 9.0}, {2.5, 16.0}, {3.0, 0.0}};
  EXPECT_EQ(StepVerdictOf(tallies, 3, /*of_shards=*/true, {}).loss_sum, 7.0);
  EXPECT_EQ(StepVerdictOf(tallies, 3, /*of_shards=*/true, {}).sum_of_squares, 25.0);
  EXPECT_EQ(StepVerdictOf(tallies, 3, /*of_shards=*/false, {}).sum_of_squares, 9.0);
}

TEST(StepVerdictTest, OneRanksInfinityOrNanSkipsTheStepOfAll) {
  for (const double bad : {kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN()}) {
    const StepTally tallies[] = {{1, 4}, {1, bad}};
    EXPECT_NE(StepVerdictOf(tallies, 2, true, {}).skip, 0);
    EXPECT_EQ(StepVerdictOf(tallies, 2, false, {}).skip, 0);
  }
  const StepTally largest[] = {{kInfinity, 1e300}};
  EXPECT_EQ(StepVerdictOf(largest, 1, true, {}).skip, 0) << "the loss alone does not skip";
}

TEST(StepVerdictTest, AStepOfNoSampleIsSkipped) {
  const StepTally tallies[] = {{0, 4}, {0, 4}};
  EXPECT_NE(StepVerdictOf(tallies, 2, true, {.unscale = 0}).skip, 0);
  EXPECT_EQ(StepVerdictOf(tallies, 2, true, {.unscale = 1e-300}).skip, 0);
}

template <class Scalars>
void TestGroups() {
  Scalars groups[3] = {};
  const StepScalarsView view{groups, 3, sizeof(Scalars), offsetof(Scalars, skip)};
  const StepInputs inputs{.unscale = 0.5, .norm_max = 1.0};
  StepVerdictNumbers verdict{.sum_of_squares = 16};  // The norm after unscaling is 2.
  for (int i = 0; i < 3; ++i) {
    SetStepScalars(verdict, inputs, view, i);
    EXPECT_EQ(groups[i].grad_scale, static_cast<float>(0.5 * ClipFactor(2, 1)));
    EXPECT_EQ(groups[i].skip, 0);
  }
  verdict.skip = 1;
  SetStepScalars(verdict, inputs, view, 1);
  EXPECT_EQ(groups[1].skip, 1);
  EXPECT_EQ(groups[1].grad_scale, 0);
  EXPECT_EQ(groups[0].skip, 0);
}

TEST(StepVerdictTest, EveryGroupsScalarsGetTheClipFactorAndTheFlag) {
  TestGroups<AdamWStepScalars>();
  TestGroups<LionStepScalars>();
}

}  // namespace
}  // namespace dtrain::kernels::step_verdict_test
