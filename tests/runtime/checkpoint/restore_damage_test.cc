// A restore in one pass: whatever file of the newest checkpoint is damaged, all ranks go on from
// the one before it, and nothing of what the damaged one has filled is left, at any stage and with
// any number of ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/status.h"
#include "dtrain/checkpointer.h"
#include "dtrain/engine.h"
#include "runtime/optimizer/engine_state.h"
#include "tests/runtime/checkpoint/state_digest.h"
#include "tests/runtime/testing/chain_for_tests.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::restore_damage_test {
namespace {

namespace fs = std::filesystem;
using testing::Chain;
using ::testing::HasSubstr;

struct Way {
  int stage = 0;
  std::vector<std::string> more = {};
};

// Step, weights, states and the tracked tensor of one rank.
absl::StatusOr<Json> Contents(Engine& engine, const Chain& model, const at::Tensor& kept,
                              int rank) {
  DT_ASSIGN_OR_RETURN(const uint32_t weights, testing::WeightsDigest(engine, model));
  return Json{{"step", engine.step()},
              {"weights", weights},
              {"states", testing::StatesDigest(engine.state(), rank)},
              {"updates", engine.state().progress.updates},
              {"kept", kept.sum().item<double>()}};
}

struct Training {
  Way way;
  std::string folder;
  int until = 0;      // Steps; each is saved.
  bool keeps = true;  // Tracks a tensor of its own.
};

// The state of a rank when it has restored, and after each step that it takes then.
absl::StatusOr<Json> TrainOne(testing::RankContext& context, const Training& training,
                              const std::string& group) {
  at::set_num_threads(1);
  std::vector<std::string> more = {"checkpoint.interval=1", "checkpoint.async=false",
                                   "checkpoint.keep=0"};
  more.insert(more.end(), training.way.more.begin(), training.way.more.end());
  DT_ASSIGN_OR_RETURN(auto job,
                      testing::MakeChainJob(&context, training.folder,
                                            {.stage = training.way.stage, .more = more}, group));
  at::manual_seed(4);
  Chain model;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
  const at::Tensor kept = at::zeros({64, 30});
  DT_ASSIGN_OR_RETURN(auto checkpoints, Checkpointer::Open(*job));
  checkpoints->Track("engine", *engine);
  if (training.keeps) {
    checkpoints->Track("mine", {{"kept", kept}});
  }
  DT_RETURN_IF_ERROR(checkpoints->RestoreLatest());
  Json all = Json::array();
  testing::Tokens source{.call = engine->step(), .rank = context.rank, .size = context.size};
  while (true) {
    DT_ASSIGN_OR_RETURN(Json now, Contents(*engine, model, kept, context.rank));
    all.push_back(std::move(now));
    if (engine->step() >= training.until) {
      return all;
    }
    DT_RETURN_IF_ERROR(TakeStep(*engine, model, source).status());
    kept.add_(1);
    DT_RETURN_IF_ERROR(checkpoints->MaybeSave(engine->step()));
  }
}

// The contents of each training, one after the other in the same ranks. Those of ranks are put
// together; an error of a training stands in the place of its contents.
absl::StatusOr<std::vector<Json>> Train(int size, const std::vector<Training>& trainings) {
  constexpr absl::Duration kBound = absl::Seconds(120);
  auto cluster = testing::Cluster::Start(
      {.size = size, .time_bound = kBound}, [&](testing::RankContext& context) -> absl::Status {
        Json all = Json::array();
        for (size_t i = 0; i < trainings.size(); ++i) {
          auto one = TrainOne(context, trainings[i], absl::StrCat("training-", i));
          all.push_back(one.ok() ? *std::move(one) : Json(std::string(one.status().message())));
        }
        return context.store->Set(absl::StrCat("all/", context.rank), DumpJson(all),
                                  Deadline::After(absl::Seconds(10)));
      });
  DT_RETURN_IF_ERROR(cluster.status());
  std::vector<Json> ranks;
  for (int rank = 0; rank < size; ++rank) {
    DT_ASSIGN_OR_RETURN(const std::string text, (*cluster)->Result(absl::StrCat("all/", rank)));
    DT_ASSIGN_OR_RETURN(Json all, ParseJson(text, "contents"));
    ranks.push_back(std::move(all));
  }
  for (const auto& result : (*cluster)->Join()) {
    DT_RETURN_IF_ERROR(result.status);
  }
  std::vector<Json> trained(ranks[0].begin(), ranks[0].end());
  for (size_t i = 0; i < trained.size(); ++i) {
    for (size_t row = 0; trained[i].is_array() && row < trained[i].size(); ++row) {
      Json& mine = trained[i][row];
      for (size_t rank = 1; rank < ranks.size(); ++rank) {
        const Json& other = ranks[rank].at(i).at(row);
        mine["states"] = mine["states"].get<uint64_t>() + other.at("states").get<uint64_t>();
        if (other.at("weights") != mine["weights"] || other.at("kept") != mine["kept"]) {
          return absl::InternalError(absl::StrCat("ranks differ: ", DumpJson(ranks[rank].at(i))));
        }
      }
    }
  }
  return trained;
}

std::vector<std::string> FilesOf(const std::string& step) {
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(step)) {
    if (entry.is_regular_file() && entry.path().filename() != "MANIFEST.json") {
      files.push_back(fs::relative(entry.path(), step).string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

// `at`: its place, as a share of the file.
void FlipAByte(const std::string& path, double at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto offset = static_cast<std::streamoff>(static_cast<double>(fs::file_size(path)) * at);
  file.seekg(offset);
  const auto byte = static_cast<char>(file.get() ^ 0x20);
  file.seekp(offset);
  file.put(byte);
  ASSERT_TRUE(file.good()) << path;
}

const char kNewest[] = "/checkpoints/step-000000000002.e1";

class RestoreDamageTest : public ::testing::TestWithParam<Way> {};

INSTANTIATE_TEST_SUITE_P(Ways, RestoreDamageTest,
                         ::testing::Values(Way{0}, Way{1, {"bf16.enabled=true"}}, Way{3},
                                           Way{3, {"bf16.enabled=true"}}),
                         [](const auto& test) {
                           return absl::StrCat("stage", test.param.stage,
                                               test.param.more.empty() ? "" : "_bf16");
                         });

TEST_P(RestoreDamageTest, AnyDamagedFileGivesTheStepBeforeToTheBit) {
  const testing::TempFolder folder;
  const std::string whole = folder.path() + "/whole";
  const auto straight = Train(2, {{GetParam(), whole, 2}});
  ASSERT_TRUE(straight.ok()) << straight.status();
  const Json& rows = straight->at(0);
  ASSERT_EQ(rows.size(), 3U) << rows;
  ASSERT_NE(rows[1]["weights"], rows[2]["weights"]);
  ASSERT_NE(rows[1]["states"], rows[2]["states"]);
  const std::vector<std::string> files = FilesOf(whole + kNewest);
  ASSERT_GE(files.size(), 4U);
  for (const int size : {1, 2, 3}) {
    std::vector<Training> trainings = {{GetParam(), absl::StrCat(folder.path(), "/", size), 0}};
    fs::copy(whole, trainings[0].folder, fs::copy_options::recursive);
    for (size_t i = 0; i < files.size(); ++i) {
      const std::string run = absl::StrCat(folder.path(), "/", size, "-", i);
      fs::copy(whole, run, fs::copy_options::recursive);
      FlipAByte(absl::StrCat(run, kNewest, "/", files[i]), size == 1   ? 0.01
                                                           : size == 2 ? 0.5
                                                                       : 0.99);
      trainings.push_back({GetParam(), run, 0});
    }
    const auto restored = Train(size, trainings);
    ASSERT_TRUE(restored.ok()) << restored.status();
    EXPECT_EQ(restored->at(0)[0], rows[2]) << size << " ranks, undamaged";
    for (size_t i = 0; i < files.size(); ++i) {
      EXPECT_EQ(restored->at(i + 1)[0], rows[1]) << size << " ranks, " << files[i];
    }
  }
}

TEST(RestoreTest, ATensorOfTheDamagedCheckpointAloneIsAsNewInTheNextStart) {
  const testing::TempFolder folder;
  const std::string run = folder.path() + "/run";
  const auto without = Train(2, {{Way{1}, run, 1, /*keeps=*/false}});
  ASSERT_TRUE(without.ok()) << without.status();
  const auto with = Train(2, {{Way{1}, run, 2}});
  ASSERT_TRUE(with.ok()) << with.status();
  FlipAByte(run + "/checkpoints/step-000000000002.e2/state/rank-1-of-2.safetensors", 0.5);
  const auto starts = Train(2, {{Way{1}, run, 1}, {Way{1}, run, 1}});
  ASSERT_TRUE(starts.ok()) << starts.status();
  EXPECT_THAT(starts->at(0).dump(),
              HasSubstr("which a damaged checkpoint after it has overwritten"));
  EXPECT_EQ(starts->at(1)[0]["step"], 1);
  EXPECT_EQ(starts->at(1)[0]["kept"], 0);
  EXPECT_EQ(starts->at(1)[0]["weights"], without->at(0)[1]["weights"]);
}

TEST(RestoreTest, WhereNoneIsWholeEveryRankIsRefused) {
  const testing::TempFolder folder;
  const std::string run = folder.path() + "/run";
  ASSERT_TRUE(Train(2, {{Way{3}, run, 2}}).ok());
  FlipAByte(run + "/checkpoints/step-000000000001.e1/state/rank-1-of-2.safetensors", 0.5);
  FlipAByte(run + kNewest + "/state/rank-0-of-2.safetensors", 0.5);
  const auto starts = Train(2, {{Way{3}, run, 2}});
  ASSERT_TRUE(starts.ok()) << starts.status();
  EXPECT_THAT(starts->at(0).dump(), HasSubstr("of 2 checkpoints there, none is whole"));
  EXPECT_THAT(starts->at(0).dump(),
              HasSubstr("step-000000000002.e1/state/rank-0-of-2.safetensors"));
}

}  // namespace
}  // namespace dtrain::restore_damage_test
