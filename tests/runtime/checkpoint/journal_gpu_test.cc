// checkpoint.journal on a real GPU: a run that is cut between checkpoints resumes behind its last
// step, and goes on with the bits of one that was never cut. journal_device_test.cc has more, over
// the fakes.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "tests/runtime/testing/journal_training.h"
#include "tests/runtime/testing/real_gpu.h"
#include "tests/runtime/testing/saved_step.h"

namespace dtrain::journal_gpu_test {
namespace {

using testing::JournalOutcome;
using testing::JournalTraining;
using testing::RankContext;
using testing::SavedStep;

class JournalGpuTest : public testing::RealGpuTest {};

JournalOutcome Train(int ranks, const std::string& folder, JournalTraining training) {
  training.overrides.emplace_back("device=cuda");
  return testing::JournalOutcomeOf(
      ranks, folder, [&](RankContext& context, JournalOutcome& outcome) {
        return testing::TrainJournalled(context, folder, training, testing::OpenRealDevice,
                                        outcome);
      });
}

// `same_bits`: of the steps behind the cut too.
void ExpectACutRunGoesOn(int ranks, const JournalTraining& training, bool same_bits = true) {
  const testing::TempFolder uncut;
  const JournalOutcome whole = Train(ranks, uncut.path(), training);
  ASSERT_EQ(whole.losses.size(), 9U);
  const testing::TempFolder cut;
  JournalTraining first = training;
  first.until = 6;
  first.ends = false;
  Train(ranks, cut.path(), first);
  const JournalOutcome second = Train(ranks, cut.path(), training);
  EXPECT_EQ(second.resumed, 6);
  const std::vector<double> expected(whole.losses.end() - 3, whole.losses.end());
  if (!same_bits) {
    ASSERT_EQ(second.losses.size(), 3U);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(second.losses[i], expected[i], 1e-2 * expected[i]);  // bf16's 8 bits.
    }
    return;
  }
  EXPECT_EQ(second.losses, expected);
  EXPECT_FALSE(SavedStep(uncut.path(), 9).empty());
  EXPECT_EQ(SavedStep(cut.path(), 9), SavedStep(uncut.path(), 9));
}

TEST_F(JournalGpuTest, ACutRunInFp32GoesOnWithItsBits) { ExpectACutRunGoesOn(1, {}); }

TEST_F(JournalGpuTest, AStepThatIsSkippedIsReplayedAsOne) {
  ExpectACutRunGoesOn(1, {.overrides = {"bf16.enabled=true", "zero_optimization.stage=2",
                                        "checkpoint.journal=sync"},
                          .bad_step = 5});
}

// The first steps of a run are eager, and products in a graph may take another algorithm.
TEST_F(JournalGpuTest, WorksBesideGraphsAndSavesInTheBackground) {
  ExpectACutRunGoesOn(
      1, {.overrides = {"bf16.enabled=true", "cuda_graphs=true", "checkpoint.async=true"}},
      /*same_bits=*/false);
}

// The model is so large that a step is shorter than the copy of its states: an update that does not
// come behind the copy, or a copy that does not come behind the last update, shows as other bits.
TEST_F(JournalGpuTest, ASaveInTheBackgroundHoldsTheBitsOfOneForWhichTrainingStoodStill) {
  for (const char* const stage : {"0", "2", "3"}) {
    std::string saves[2];
    for (const bool async : {false, true}) {
      const testing::TempFolder folder;
      const JournalOutcome outcome = Train(
          1, folder.path(),
          {.overrides = {"checkpoint.journal=off", absl::StrCat("zero_optimization.stage=", stage),
                         absl::StrCat("checkpoint.async=", async ? "true" : "false")},
           .until = 7,
           .width = 100000});
      EXPECT_EQ(outcome.losses.size(), 7U);
      saves[async ? 1 : 0] = SavedStep(folder.path(), 4);
    }
    EXPECT_FALSE(saves[0].empty());
    EXPECT_EQ(saves[1], saves[0]) << "stage " << stage;
  }
}

TEST_F(JournalGpuTest, TwoRanksThatShareAGpuGoOnToo) {
  ExpectACutRunGoesOn(2, {.overrides = {"zero_optimization.stage=3"}});
}

TEST_F(JournalGpuTest, AnotherNumberOfRanksReplaysToTheSameBits) {
  std::string saves[2];
  for (const bool journalled : {false, true}) {
    const testing::TempFolder folder;
    Train(2, folder.path(),
          {.overrides = {"zero_optimization.stage=1"}, .until = 6, .ends = !journalled});
    EXPECT_EQ(Train(1, folder.path(), {.until = 7}).resumed, 6);
    saves[journalled ? 1 : 0] = SavedStep(folder.path(), 7);
  }
  EXPECT_FALSE(saves[0].empty());
  EXPECT_EQ(saves[0], saves[1]);
}

}  // namespace
}  // namespace dtrain::journal_gpu_test
