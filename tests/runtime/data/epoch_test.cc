// A run whose length is given in epochs of its data: the same number of steps on any number of
// ranks, in force everywhere before the engine is made, and mistakes that are named on all ranks.
#include "runtime/data/epoch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "dtrain/data_loader.h"
#include "dtrain/engine.h"
#include "dtrain/token_loader.h"
#include "runtime/job/run_directory.h"
#include "runtime/plan/data/token_file.h"
#include "tests/runtime/testing/chain_for_tests.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "tests/runtime/testing/rank_numbers.h"

namespace dtrain::epoch_test {
namespace {

using ::testing::ElementsAre;
using testing::NumbersOf;
using testing::RankContext;

constexpr int64_t kGlobalBatch = 6;

struct Zeros {
  int64_t count = 0;
  int64_t size() const { return count; }
  Sample Get(int64_t /*index*/) const { return {at::zeros({2})}; }
};

void WriteTokens(const std::string& path, int64_t count) {
  const std::vector<uint16_t> tokens(static_cast<size_t>(count), 1);
  std::ofstream(path, std::ios::binary)
      << plan::MakeTokenHeader(count, 100)
      << std::string(reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size());
}

absl::StatusOr<std::unique_ptr<Job>> MakeJob(RankContext* context, const std::string& folder,
                                             std::vector<std::string> more,
                                             const std::string& group = "world",
                                             int64_t batch = kGlobalBatch) {
  at::set_num_threads(1);
  more.push_back(absl::StrCat("train_batch_size=", batch));
  return testing::MakeTestJob(
      {.run_dir = folder, .overrides = std::move(more), .rank = context, .group = group});
}

// An error in place of an expectation, which counts in a rank's process.
absl::Status CheckSays(const absl::Status& refused, const std::string& text) {
  return !refused.ok() && absl::StrContains(refused.message(), text)
             ? absl::OkStatus()
             : absl::InternalError(
                   absl::StrCat("not refused by \"", text, "\": ", std::string(refused.message())));
}

// 41 tokens are 10 windows of 4, which are 5/3 steps.
std::vector<std::string> TokenSets(const std::string& folder, const std::string& epochs) {
  WriteTokens(folder + "/train.bin", 41);
  return {"train_epochs=" + epochs, "data.sequence_length=4",
          absl::StrCat("data.train=", folder, "/train.bin")};
}

TEST(EpochTest, TokenFilesDecideTheStepsAlikeOnAnyNumberOfRanks) {
  for (const int size : {1, 2, 3}) {
    const std::vector<double> numbers =
        NumbersOf(size, [](RankContext& context, std::vector<double>& out) -> absl::Status {
          for (const char* const epochs : {"1", "3", "0.5"}) {
            const testing::TempFolder folder;
            DT_ASSIGN_OR_RETURN(auto job, MakeJob(&context, folder.path(),
                                                  TokenSets(folder.path(), epochs), epochs));
            DT_RETURN_IF_ERROR(TokenLoader::Open(*job, Split::kTrain).status());
            out.push_back(double(job->config().train_steps()));
          }
          return absl::OkStatus();
        });
    EXPECT_THAT(numbers, ElementsAre(2, 5, 1)) << size;
  }
}

// A part that is never drawn does not count.
TEST(EpochTest, AnEpochOfAMixtureIsWhatItsPartsHoldTogether) {
  const testing::TempFolder folder;
  WriteTokens(folder.path() + "/a.bin", 81);   // 20 windows.
  WriteTokens(folder.path() + "/b.bin", 161);  // 40 windows.
  WriteTokens(folder.path() + "/c.bin", 401);
  const auto part = [&](const char* name, double weight) {
    return absl::StrCat(R"({"files": ")", folder.path(), "/", name, R"(.bin", "weight": )", weight,
                        "}");
  };
  auto job = *MakeJob(
      nullptr, folder.path(),
      {"train_epochs=2", "data.sequence_length=4",
       absl::StrCat("data.train=[", part("a", 3), ", ", part("b", 1), ", ", part("c", 0), "]")});
  ASSERT_TRUE(TokenLoader::Open(*job, Split::kTrain).ok());
  EXPECT_EQ(job->config().train_steps(), 20) << "2 epochs of 60 windows by 6";
}

TEST(EpochTest, RecordsAndReferencesHoldTheNumberOfSteps) {
  const testing::TempFolder folder;
  auto sets = TokenSets(folder.path(), "3");
  sets.emplace_back("scheduler.type=WarmupCosineLR");
  auto job = *MakeJob(nullptr, folder.path(), sets);
  const Config& config = job->config();
  const SchedulerConfig& before = config.scheduler();
  ASSERT_TRUE(PrepareRunDirectory({.path = folder.path()}, config).ok());
  EXPECT_EQ(config.train_steps(), 0);
  ASSERT_TRUE(TokenLoader::Open(*job, Split::kTrain).ok());
  EXPECT_EQ(config.train_steps(), 5) << "a reference that the program took before";
  EXPECT_EQ(config.scheduler().total_num_steps, 5);
  EXPECT_EQ(before.total_num_steps, 0) << "still there";
  const Json written = *ParseJson(*ReadFile(folder.path() + "/config.json"), "config.json");
  EXPECT_EQ(written["train_steps"], 5);
  EXPECT_EQ(written["train_epochs"], 3);
  const Json run = *ParseJson(*ReadFile(folder.path() + "/run.json"), "run.json");
  EXPECT_EQ(run["hyperparameters"]["train_steps"], 5);
  EXPECT_FALSE(run["id"].get<std::string>().empty());
  // The progress line, TensorBoard and `dtrain logs` read the record; steps say when the end comes.
  testing::Chain model;
  auto engine = *Engine::Create(*job, model);
  testing::Tokens source;
  job->metrics().Log(*testing::TakeStep(*engine, model, source));
  job->metrics().Flush();
  std::vector<Json> lengths;
  bool says_eta = false;
  const std::string records = *ReadFile(folder.path() + "/metrics/rank-0.jsonl");
  for (const absl::string_view line : absl::StrSplit(records, '\n', absl::SkipEmpty())) {
    const Json record = *ParseJson(line, "record");
    if (record["kind"] == "config") {
      lengths.push_back(record["train_steps"]);
    }
    says_eta = says_eta || record.value("m", Json::object()).contains("time/eta_s");
  }
  EXPECT_THAT(lengths, ElementsAre(5));
  EXPECT_TRUE(says_eta);
}

TEST(EpochTest, AProgramSaysHowManyStepsAnEpochOfItsDatasetTakes) {
  const std::vector<double> numbers =
      NumbersOf(2, [](RankContext& context, std::vector<double>& out) -> absl::Status {
        const testing::TempFolder folder;
        DT_ASSIGN_OR_RETURN(auto job, MakeJob(&context, folder.path(), {"train_epochs=2.5"}));
        const Zeros dataset{20};
        DT_ASSIGN_OR_RETURN(auto data, DataLoader::Open(*job, dataset));
        testing::Chain model;
        const absl::Status early = Engine::Create(*job, model).status();
        DT_RETURN_IF_ERROR(
            CheckSays(early, "train_epochs 2.5 is set, but not how many steps an epoch takes"));
        DT_RETURN_IF_ERROR(CheckSays(early, "job.SetStepsPerEpoch("));
        DT_RETURN_IF_ERROR(job->SetStepsPerEpoch(data->steps_per_epoch()));
        DT_RETURN_IF_ERROR(job->SetStepsPerEpoch(data->steps_per_epoch()));  // The same again.
        DT_RETURN_IF_ERROR(Engine::Create(*job, model).status());
        out = {double(job->config().train_steps())};
        return CheckSays(job->SetStepsPerEpoch(5),
                         "train_epochs 2.5 is 9 steps already, and would be 13");
      });
  EXPECT_THAT(numbers, ElementsAre(9)) << "50 samples by 6";
}

// Where batches span epochs, the run is rounded up and not each epoch.
TEST(EpochTest, ARunOverADatasetEndsWithItsLastSample) {
  struct Case {
    const char* epochs;
    int64_t batch;
    bool drop_last;
  };
  const std::vector<double> numbers =
      NumbersOf(2, [](RankContext& context, std::vector<double>& out) -> absl::Status {
        for (const Case& one : {Case{"10", 32, false}, Case{"2", 6, false}, Case{"2.5", 6, true},
                                Case{"1", 4, true}}) {
          const testing::TempFolder folder;
          DT_ASSIGN_OR_RETURN(auto job, MakeJob(&context, folder.path(),
                                                {absl::StrCat("train_epochs=", one.epochs)},
                                                absl::StrCat("e", one.epochs), one.batch));
          const Zeros dataset{20};
          DT_ASSIGN_OR_RETURN(auto data,
                              DataLoader::Open(*job, dataset, {.drop_last = one.drop_last}));
          DT_RETURN_IF_ERROR(job->SetStepsPerEpoch(data->steps_per_epoch()));
          out.push_back(double(job->config().train_steps()));
        }
        return absl::OkStatus();
      });
  // 200 / 32 and 40 / 6, rounded up; 2.5 epochs of 3 whole steps; 20 / 4.
  EXPECT_THAT(numbers, ElementsAre(7, 7, 8, 5));
}

TEST(EpochTest, WithoutEpochsACallChangesNothing) {
  const testing::TempFolder folder;
  auto job = *MakeJob(nullptr, folder.path(), {"train_steps=7"});
  EXPECT_TRUE(job->SetStepsPerEpoch(100).ok());
  EXPECT_EQ(job->config().train_steps(), 7);
  for (const double none : {0.0, -1.0, double(NAN), double(INFINITY)}) {
    EXPECT_TRUE(absl::IsInvalidArgument(job->SetStepsPerEpoch(none))) << none;
  }
}

TEST(EpochTest, RanksThatSayDifferentNumbersAreNamedOnAllOfThem) {
  const std::vector<double> numbers =
      NumbersOf(2, [](RankContext& context, std::vector<double>& out) -> absl::Status {
        const testing::TempFolder folder;
        DT_ASSIGN_OR_RETURN(auto job, MakeJob(&context, folder.path(), {"train_epochs=2"}));
        const absl::Status refused = job->SetStepsPerEpoch(4 + context.rank);
        out = {double(job->config().train_steps())};
        return CheckSays(refused, "an epoch takes 4 steps on rank 0 and 5 on rank 1");
      });
  EXPECT_THAT(numbers, ElementsAre(0));
}

// The number of a saved run, for the line that says that it changed.
TEST(EpochTest, AResumedRunKnowsHowLongItWas) {
  const testing::TempFolder folder;
  const std::string path = folder.path() + "/run";
  const Config waiting =
      *Config::Parse(R"({"train_batch_size": 8, "train_epochs": 2})", "run.json", {}, 1);
  ASSERT_TRUE(PrepareRunDirectory({.path = path}, waiting).ok());
  ASSERT_TRUE(RecordConfiguration(path, *waiting.WithStepsPerEpoch(10)).ok());
  ASSERT_TRUE(MakeDirectories(path + "/metrics").ok());
  ASSERT_TRUE(WriteFileAtomic(path + "/metrics/rank-0.jsonl", "{\"kind\":\"step\"}\n").ok());
  const auto again = PrepareRunDirectory({.path = path}, waiting);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->saved_steps, 20);
}

}  // namespace
}  // namespace dtrain::epoch_test
