// What a program does wrong with a Checkpointer is said at the first call, and a job whose run
// directory another one has taken ends.
#include "dtrain/checkpointer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ATen/ATen.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "runtime/engine/engine_state.h"
#include "tests/runtime/chain_for_tests.h"
#include "tests/runtime/job_for_tests.h"

namespace dtrain::checkpointer_test {
namespace {

using ::testing::AllOf;
using testing::Chain;
using ::testing::HasSubstr;

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
  std::unique_ptr<Run> Start() {
    auto run = std::make_unique<Run>();
    run->job = *testing::MakeTestJob(
        {.run_dir = folder_.path(), .overrides = {"train_batch_size=1", "checkpoint.interval=1"}});
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
  const absl::Status status = first->checkpoints->MaybeSave(2);
  ExpectMisuse(status, "Another job writes to this run directory");
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("epochs/"), HasSubstr("--run-dir")));
  first->engine->state().step = 3;
  const absl::Status last = first->checkpoints->Finish();
  ExpectMisuse(last, "the last step, 3, is not saved: ");
  EXPECT_THAT(std::string(last.message()), HasSubstr("Another job writes to this run directory"));
  EXPECT_TRUE(second->checkpoints->MaybeSave(2).ok()) << "it may go on";
}

}  // namespace
}  // namespace dtrain::checkpointer_test
