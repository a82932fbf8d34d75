// Misuse of a Checkpointer is reported at the first call, and a job whose run directory another one
// has taken ends.
#include "dtrain/checkpointer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "base/system/move_aside.h"
#include "dtrain/engine.h"
#include "runtime/checkpoint/save_policy.h"
#include "runtime/job/error_file.h"
#include "runtime/job/job_state.h"
#include "runtime/optimizer/engine_state.h"
#include "tests/runtime/testing/chain_for_tests.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::checkpointer_test {
namespace {

using ::testing::AllOf;
using testing::Chain;
using ::testing::HasSubstr;

// The launcher sets a host aside by what its ranks say of it first-hand.
TEST(Stopped, AHostsDiskThatKeptTheLastStepFromBeingSavedIsToldOf) {
  for (const int number : {ENOSPC, EDQUOT, EIO, EROFS, EACCES}) {
    const absl::Status saved =
        Annotate(ErrnoStatus(number, "MANIFEST.json"), "save of step 7: rank 1");
    const absl::Status stopped = Stopped("stopped by SIGTERM after step 7", saved, "checkpoints");
    EXPECT_TRUE(IsFirstHand(stopped)) << stopped;
    EXPECT_EQ(ExitCodeFor(stopped), 75) << "the next attempt may save";
    EXPECT_EQ(stopped.message(),
              absl::StrCat("stopped by SIGTERM after step 7, but that step could not be saved: ",
                           saved.message()));
  }
  const absl::Status lost = absl::UnavailableError("rank 1 has failed");
  EXPECT_FALSE(IsFirstHand(Stopped("stopped by SIGTERM after step 7", lost, "checkpoints")));
}

class Text final : public Tracked {
 public:
  explicit Text(size_t bytes) : text_(bytes, 'x') {}
  Json SaveState() const override { return text_; }
  absl::Status RestoreState(const Json& /*state*/) override { return absl::OkStatus(); }

 private:
  std::string text_;
};

// One rank alone; checkpoint.interval is 1.
class CheckpointerTest : public ::testing::Test {
 protected:
  struct Run {
    std::unique_ptr<Job> job;
    Chain model;
    std::unique_ptr<Engine> engine;
    std::unique_ptr<Checkpointer> checkpoints;
  };
  std::unique_ptr<Run> Start(const std::string& checkpoint_dir = "", bool async = false) {
    auto run = std::make_unique<Run>();
    std::vector<std::string> overrides = {"train_batch_size=1", "checkpoint.interval=1"};
    if (async) {
      overrides.emplace_back("checkpoint.async=true");
    }
    if (!checkpoint_dir.empty()) {
      overrides.push_back("checkpoint.dir=" + checkpoint_dir);
    }
    run->job = *testing::MakeTestJob({.run_dir = folder_.path(), .overrides = overrides});
    run->engine = *Engine::Create(*run->job, run->model);
    run->checkpoints = *Checkpointer::Open(*run->job);
    return run;
  }
  static void ExpectMisuse(const absl::Status& status, const std::string& said) {
    EXPECT_EQ(ExitCodeFor(status), kExitUsage);
    EXPECT_THAT(std::string(status.message()), HasSubstr(said));
  }
  testing::TempFolder folder_;
};

TEST_F(CheckpointerTest, WithoutAnEngineNothingIsSavedAndItSaysSo) {
  const auto run = Start();
  Text text(8);
  run->checkpoints->Track("text", text);
  ExpectMisuse(run->checkpoints->RestoreLatest(), "tracks no engine");
  ExpectMisuse(run->checkpoints->MaybeSave(1), "Track(\"engine\", *engine)");
  ExpectMisuse(run->checkpoints->Finish(), "tracks no engine");
}

TEST_F(CheckpointerTest, TrackingTwiceIsTheProgramsMistake) {
  const auto run = Start();
  run->checkpoints->Track("engine", *run->engine);
  run->checkpoints->Track("again", *run->engine);
  ExpectMisuse(run->checkpoints->MaybeSave(1), "\"again\" after \"engine\" with the same engine");
  const auto other = Start();
  other->checkpoints->Track("engine", *other->engine);
  Text text(8);
  other->checkpoints->Track("text", text);
  other->checkpoints->Track("text", text);
  ExpectMisuse(other->checkpoints->MaybeSave(1), "the name \"text\" twice");
  const auto third = Start();
  third->checkpoints->Track("engine", *third->engine);
  third->checkpoints->Track("average", {{"a", at::zeros({2})}, {"a", at::zeros({2})}});
  ExpectMisuse(third->checkpoints->MaybeSave(1), "the tensor \"a\" of \"average\" twice");
}

TEST_F(CheckpointerTest, StateThatIsTooLargeIsSaidAtTheFirstSave) {
  const auto run = Start();
  run->checkpoints->Track("engine", *run->engine);
  Text small(8);
  Text large(960 << 10);
  run->checkpoints->Track("a", small);
  EXPECT_TRUE(run->checkpoints->MaybeSave(0).ok());
  run->checkpoints->Track("history", large);
  const absl::Status status = run->checkpoints->MaybeSave(1);
  ExpectMisuse(status, "of which \"history\" takes 983042");
  EXPECT_THAT(std::string(status.message()), HasSubstr("allowed: 983040"));
}

TEST_F(CheckpointerTest, AJobWhoseRunDirectoryAnotherOneTookEndsForGood) {
  const auto first = Start();
  first->checkpoints->Track("engine", *first->engine);
  ASSERT_TRUE(first->checkpoints->MaybeSave(1).ok());
  const auto second = Start();
  second->checkpoints->Track("engine", *second->engine);
  ASSERT_TRUE(second->checkpoints->MaybeSave(1).ok());
  ::testing::internal::CaptureStderr();
  const absl::Status status = first->checkpoints->MaybeSave(2);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "") << "its end says why";
  ExpectMisuse(status, "Another job writes to this run directory");
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("epochs/"), HasSubstr("--run-dir")));
  first->engine->state().progress.step = 3;
  const absl::Status last = first->checkpoints->Finish();
  ExpectMisuse(last, "the last step, 3, is not saved: ");
  EXPECT_THAT(std::string(last.message()), HasSubstr("Another job writes to this run directory"));
  EXPECT_TRUE(second->checkpoints->MaybeSave(2).ok()) << "it may go on";
}

TEST_F(CheckpointerTest, AJobThatSavesInTheBackgroundLearnsThatItsDirectoryIsTaken) {
  at::set_num_threads(1);
  const auto saved = [](Run& run, int64_t step) {
    run.engine->state().progress.step = step;
    EXPECT_TRUE(run.checkpoints->MaybeSave(step).ok());  // Starts it.
    return run.checkpoints->Finish();
  };
  const auto first = Start("", /*async=*/true);
  first->checkpoints->Track("engine", *first->engine);
  EXPECT_TRUE(saved(*first, 1).ok());
  const auto second = Start("", /*async=*/true);
  second->checkpoints->Track("engine", *second->engine);
  EXPECT_TRUE(saved(*second, 1).ok());
  ::testing::internal::CaptureStderr();
  const absl::Status status = saved(*first, 2);
  // A warning of a save that failed would promise that training goes on, which it does not.
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "") << "its end says why";
  ExpectMisuse(status, "Another job writes to this run directory");
  EXPECT_TRUE(saved(*second, 2).ok()) << "it may go on";
}

TEST_F(CheckpointerTest, ARunWhoseCheckpointsAreGoneDoesNotBeginAnew) {
  {
    const auto run = Start();
    run->checkpoints->Track("engine", *run->engine);
    ASSERT_TRUE(run->checkpoints->RestoreLatest().ok());
    ASSERT_TRUE(run->checkpoints->MaybeSave(1).ok());
    ASSERT_TRUE(run->checkpoints->MaybeSave(2).ok());
    run->job->metrics().Flush();
  }
  // The folder is there and empty, like the mount point of a file system that is not mounted.
  const testing::TempFolder empty;
  const auto elsewhere = Start(empty.path());
  elsewhere->checkpoints->Track("engine", *elsewhere->engine);
  ExpectMisuse(elsewhere->checkpoints->RestoreLatest(), "this run saved step 2 in");
  std::filesystem::remove_all(folder_.path() + "/checkpoints");
  const auto again = Start();
  again->checkpoints->Track("engine", *again->engine);
  ExpectMisuse(again->checkpoints->RestoreLatest(), "--fresh");
  again->job->state().fresh = true;
  EXPECT_TRUE(again->checkpoints->RestoreLatest().ok());
}

// Where a number above 2^31 became one below 0, all but the two newest were removed.
TEST(KeptCheckpointsTest, AnyNumberOfThemMayBeKept) {
  constexpr int kMost = std::numeric_limits<int>::max();
  for (const auto& [keep, newest] :
       {std::pair(int64_t{0}, 0), {7, 7}, {3'000'000'000, kMost}, {4'294'967'297, kMost}}) {
    const auto config = Config::Parse(
        "{}", "test", {"train_batch_size=1", absl::StrCat("checkpoint.keep=", keep)}, 1);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(KeptCheckpoints(*config).newest, newest) << keep;
  }
}

TEST_F(CheckpointerTest, AFreshStartIsDueUntilTheAttemptHasBegun) {
  ASSERT_TRUE(NoteFreshStart(folder_.path()).ok());
  const auto run = Start();
  run->checkpoints->Track("engine", *run->engine);
  EXPECT_TRUE(IsFreshStartDue(folder_.path()));
  ASSERT_TRUE(run->checkpoints->RestoreLatest().ok());
  EXPECT_FALSE(IsFreshStartDue(folder_.path()));
}

TEST_F(CheckpointerTest, AFileInThePlaceOfTheFolderIsNamedWithItsKey) {
  const std::string file = folder_.path() + "/file";
  ASSERT_TRUE(WriteFileAtomic(file, "x").ok());
  const auto job = *testing::MakeTestJob(
      {.run_dir = folder_.path(), .overrides = {"train_batch_size=1", "checkpoint.dir=" + file}});
  ExpectMisuse(Checkpointer::Open(*job).status(),
               "checkpoint.dir: " + file + " exists and is not a directory");
}

TEST_F(CheckpointerTest, AFailedSaveSaysWhichCheckpointIsTheLastGoodOne) {
  const auto run = Start();
  run->checkpoints->Track("engine", *run->engine);
  ASSERT_TRUE(run->checkpoints->MaybeSave(1).ok());
  ASSERT_TRUE(WriteFileAtomic(folder_.path() + "/checkpoints/step-000000000002.e1", "x").ok());
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(run->checkpoints->MaybeSave(2).ok());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("checkpoint of step 2 was not saved"),
                    HasSubstr("the last good one is of step 1")));
}

}  // namespace
}  // namespace dtrain::checkpointer_test
