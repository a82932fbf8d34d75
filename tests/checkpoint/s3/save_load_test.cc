// Writer and Reader on both servers: save, restore, retention, resuming, the command-line tool.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/file.h"
#include "checkpoint/restore/verify.h"
#include "tests/checkpoint/s3/s3_server.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint::s3::save_load_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr size_t kScale = 1500;  // A state of 6 MB: two parts.

class SaveLoadTest : public ::testing::TestWithParam<S3Server::Kind> {
 protected:
  EpochRecord Begin(int world_size) {
    auto latest = FindLatest(*storage_);
    std::optional<StepId> from;
    if (latest.ok()) {
      from = (*latest)->manifest().id;
    }
    auto epoch = BeginEpoch(*storage_, "job", world_size, from);
    DT_CHECK_OK(epoch.status());
    return *epoch;
  }
  // The step that loads, with every rank's bits.
  int64_t LoadedStep(int world_size, size_t scale) {
    auto latest = FindLatest(*storage_);
    EXPECT_TRUE(latest.ok()) << latest.status();
    if (!latest.ok()) {
      return -1;
    }
    const int64_t step = (*latest)->manifest().id.step;
    for (int rank = 0; rank < world_size; ++rank) {
      const absl::Status same = FakeState(step, rank, world_size, scale).Compare(**latest);
      EXPECT_TRUE(same.ok()) << same;
    }
    return step;
  }
  struct Result {
    int code = -1;
    std::string output;
  };
  Result RunTool(const std::vector<std::string>& arguments) {
    const TemporaryFolder folder;
    std::vector<std::string> command = {TOOL_PATH};
    command.insert(command.end(), arguments.begin(), arguments.end());
    ChildProcess tool(command, WriterEnvironment(server_.endpoint()), folder.path() + "/out");
    Result result;
    result.code = tool.Wait();
    result.output = *ReadFile(folder.path() + "/out");
    EXPECT_THAT(result.output, Not(HasSubstr("canary")));
    return result;
  }

  S3Server& server_ = S3Server::Of(GetParam());
  const std::string url_ = server_.NewUrl();
  const std::unique_ptr<Storage> storage_ = OpenOrDie(url_, OptionsOf(server_.endpoint()));
};

TEST_P(SaveLoadTest, RanksSaveAndReadBackEveryBit) {
  for (const int world_size : {1, 2}) {
    WriterOptions options = OptionsFor(Begin(world_size));
    options.verify_after_write = world_size == 2;
    const int64_t step = 100 * world_size;
    for (const SaveReport& report : SaveOnRanks(*storage_, options, world_size, step, kScale)) {
      ASSERT_EQ(report.outcome, SaveOutcome::kCommitted) << report.status;
    }
    EXPECT_EQ(LoadedStep(world_size, kScale), step);
  }
  EXPECT_EQ(ReadAll(*storage_, "latest"), "step-000000000200.e2\n");
}

TEST_P(SaveLoadTest, ASecondSaveOfAStepIsKnownAndOldCheckpointsGo) {
  WriterOptions options = OptionsFor(Begin(1));
  options.keep.newest = 2;
  options.verify_after_write = true;
  Writer writer(*storage_, options);
  AloneExchange alone;
  for (const int64_t step : {1, 2, 3, 3, 4}) {
    FakeState state(step, 0, 1);
    const SaveReport report = writer.Save(step, state.source(), alone);
    EXPECT_TRUE(report.durable()) << report.status;
  }
  const auto commits = ListCheckpoints(*storage_);
  ASSERT_TRUE(commits.ok());
  EXPECT_THAT(*commits, ::testing::ElementsAre(StepId{1, 4}, StepId{1, 3}));
  EXPECT_THAT(FilesBelow(*storage_, "step-000000000001.e1"), IsEmpty());
  EXPECT_THAT(FilesBelow(*storage_, "step-000000000002.e1"), IsEmpty());
}

TEST_P(SaveLoadTest, ANewAttemptFencesTheOneBefore) {
  const EpochRecord first = Begin(1);
  ASSERT_TRUE(SaveOnRanks(*storage_, OptionsFor(first), 1, 1)[0].durable());
  const EpochRecord second = Begin(1);
  EXPECT_EQ(second.epoch, 2);
  EXPECT_EQ(second.resumed_from, (StepId{1, 1}));
  EXPECT_EQ(SaveOnRanks(*storage_, OptionsFor(first), 1, 2)[0].outcome, SaveOutcome::kFenced);
  EXPECT_TRUE(SaveOnRanks(*storage_, OptionsFor(second), 1, 2)[0].durable());
}

TEST_P(SaveLoadTest, ADamagedObjectIsFoundAndTheCheckpointBeforeIsTaken) {
  const EpochRecord epoch = Begin(1);
  for (const int64_t step : {1, 2}) {
    ASSERT_TRUE(SaveOnRanks(*storage_, OptionsFor(epoch), 1, step)[0].durable());
  }
  const std::string path = "step-000000000002.e1/state/rank-0-of-1.safetensors";
  std::string content = ReadAll(*storage_, path);
  content.back() = static_cast<char>(content.back() ^ 1);
  ASSERT_TRUE(storage_->Replace(path, content).ok());
  EXPECT_EQ(LoadedStep(1, 1), 1);
  const Result result = RunTool({"verify", url_});
  EXPECT_EQ(result.code, 64);
  EXPECT_THAT(result.output, AllOf(HasSubstr(url_ + "/" + path), HasSubstr("is damaged"),
                                   HasSubstr("1 of 2 checkpoints is damaged")));
}

TEST_P(SaveLoadTest, TheToolListsShowsAndVerifies) {
  const EpochRecord epoch = Begin(2);
  for (const int64_t step : {100, 200}) {
    ASSERT_TRUE(SaveOnRanks(*storage_, OptionsFor(epoch), 2, step)[0].durable());
  }
  const Result list = RunTool({"list", url_});
  EXPECT_EQ(list.code, 0) << list.output;
  EXPECT_THAT(list.output, AllOf(HasSubstr(url_), HasSubstr("100"), HasSubstr("complete")));
  const Result show = RunTool({"show", url_ + "/step-000000000100.e1/"});
  EXPECT_EQ(show.code, 0) << show.output;
  EXPECT_THAT(show.output, HasSubstr(url_ + "/step-000000000100.e1"));
  const Result verify = RunTool({"verify", url_});
  EXPECT_EQ(verify.code, 0) << verify.output;
  EXPECT_THAT(verify.output, HasSubstr("every byte verified"));
  const Result none = RunTool({"list", url_ + "/nothing"});
  EXPECT_EQ(none.code, 64);
  EXPECT_THAT(none.output, HasSubstr("holds no finished checkpoint"));
}

INSTANTIATE_TEST_SUITE_P(Servers, SaveLoadTest, ::testing::ValuesIn(S3Server::kKinds),
                         [](const auto& test) { return S3Server::Name(test.param); });

}  // namespace
}  // namespace dtrain::checkpoint::s3::save_load_test
