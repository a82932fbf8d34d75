// Retention by a metric: the checkpoints with the best values stay, whatever their age.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/check.h"
#include "base/log.h"
#include "checkpoint/commit/retention.h"
#include "checkpoint/restore/verify.h"
#include "checkpoint/storage/faulty_file_system.h"
#include "checkpoint/storage/memory_file_system.h"
#include "checkpoint/storage/posix_storage.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint::retention_best_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

RetentionInput Input(const std::map<int64_t, double>& losses, int best) {
  RetentionInput input;
  input.lineage = {{1, kStepMax}};
  input.own_epoch = 1;
  input.keep = {.newest = 2, .best = best, .metric = "eval/loss"};
  for (const auto& [step, loss] : losses) {
    input.commits.push_back({1, step});
    input.metrics[{1, step}] = loss;
  }
  return input;
}

std::vector<int64_t> Removed(const RetentionInput& input, int64_t damaged = -1) {
  std::vector<int64_t> steps;
  for (const StepId& id :
       CommitsToRemove(input, [&](const StepId& asked) { return asked.step != damaged; })) {
    steps.push_back(id.step);
  }
  return steps;
}

TEST(RetentionBestTest, TheSmallestStayBesideTheNewest) {
  const std::map<int64_t, double> losses = {{1, 5}, {2, 1}, {3, 4}, {4, 2}, {5, 6}, {6, 7}};
  EXPECT_THAT(Removed(Input(losses, 0)), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(Removed(Input(losses, 1)), ElementsAre(1, 3, 4));
  EXPECT_THAT(Removed(Input(losses, 2)), ElementsAre(1, 3));
  EXPECT_THAT(Removed(Input(losses, 9)), IsEmpty());
}

TEST(RetentionBestTest, TheLargestStayWhereLargerIsBetter) {
  RetentionInput input = Input({{1, 5}, {2, 1}, {3, 4}, {4, 0}, {5, 0}}, 2);
  input.keep.larger_is_better = true;
  EXPECT_THAT(Removed(input), ElementsAre(2));
}

TEST(RetentionBestTest, TheNewestCountAmongTheBest) {
  EXPECT_THAT(Removed(Input({{1, 3}, {2, 2}, {3, 1}, {4, 0}}, 2)), ElementsAre(1, 2));
}

TEST(RetentionBestTest, OfEqualValuesTheLaterStays) {
  EXPECT_THAT(Removed(Input({{1, 1}, {2, 1}, {3, 1}, {4, 2}, {5, 2}}, 1)), ElementsAre(1, 2));
}

TEST(RetentionBestTest, ADamagedOneIsNotTheBest) {
  const RetentionInput input = Input({{1, 2}, {2, 1}, {3, 3}, {4, 9}, {5, 9}}, 1);
  EXPECT_THAT(Removed(input), ElementsAre(1, 3));
  EXPECT_THAT(Removed(input, 2), ElementsAre(2, 3));
}

TEST(RetentionBestTest, ACommitWithoutAValueIsNotAmongTheBest) {
  RetentionInput input = Input({{1, 2}, {2, 1}, {3, 9}, {4, 9}}, 1);
  input.metrics.erase({1, 2});
  EXPECT_THAT(Removed(input), ElementsAre(2));
}

TEST(RetentionTest, ACheckpointThatIsBeingReadStays) {
  RetentionInput input = Input({{1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}}, 0);
  input.in_use = {{1, 2}, {1, 5}};
  EXPECT_THAT(Removed(input), ElementsAre(1, 3));
}

TEST(RetentionBestTest, AMetricIsReadFromTheEnginesRecord) {
  Manifest manifest;
  EXPECT_EQ(MetricOf(manifest, "eval/loss"), std::nullopt);
  manifest.state.engine = {{"metrics",
                            {{"eval/loss", 2.5},
                             {"count", 3},
                             {"nan", std::numeric_limits<double>::quiet_NaN()},
                             {"text", "NaN"}}}};
  EXPECT_EQ(MetricOf(manifest, "eval/loss"), 2.5);
  EXPECT_EQ(MetricOf(manifest, "count"), 3.0);
  EXPECT_EQ(MetricOf(manifest, "nan"), std::nullopt);
  EXPECT_EQ(MetricOf(manifest, "text"), std::nullopt);
  EXPECT_EQ(MetricOf(manifest, "other"), std::nullopt);
  manifest.state.engine = {{"metrics", 3}};
  EXPECT_EQ(MetricOf(manifest, "eval/loss"), std::nullopt);
}

TEST(RetentionBestTest, AWriterKeepsTheBestOfWhatItsManifestsRecord) {
  MemoryFileSystem files;
  const auto storage = MakePosixStorage(files);
  WriterOptions options = OptionsFor(*BeginEpoch(*storage, "job", 1, std::nullopt));
  options.keep = {.newest = 2, .best = 1, .metric = "eval/loss"};
  Writer writer(*storage, options);
  AloneExchange alone;
  for (const auto& [step, loss] :
       std::map<int64_t, double>{{1, 3}, {2, 1}, {3, 2}, {4, 4}, {5, 5}}) {
    FakeState state(step, 0, 1);
    state.source().job.engine["metrics"] = {{"eval/loss", loss}};
    ASSERT_TRUE(writer.Save(step, state.source(), alone).durable());
  }
  EXPECT_THAT(*ListCheckpoints(*storage), ElementsAre(StepId{1, 5}, StepId{1, 4}, StepId{1, 2}));
}

TEST(RemoveCommitTest, TheManifestGoesFirst) {
  SetLogLevel(LogLevel::kError);
  MemoryFileSystem files;
  const auto storage = MakePosixStorage(files);
  const EpochRecord epoch = *BeginEpoch(*storage, "job", 1, std::nullopt);
  ASSERT_TRUE(SaveOnRanks(*storage, OptionsFor(epoch), 1, 1)[0].durable());
  FaultyFileSystem faulty(files, {.at = 1, .kind = FaultKind::kStop});  // After the first call.
  const auto failing = MakePosixStorage(faulty);
  EXPECT_FALSE(RemoveCommit(*failing, {1, 1}).ok());
  EXPECT_THAT(*ListCheckpoints(*storage), IsEmpty());
  EXPECT_TRUE(storage->OpenFile("step-000000000001.e1/model/config.json").ok());
  EXPECT_TRUE(RemoveTree(*storage, "step-000000000001.e1").ok());
}

}  // namespace
}  // namespace dtrain::checkpoint::retention_best_test
