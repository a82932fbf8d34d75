// checkpoint.journal: a run that is cut between checkpoints resumes behind its last step, and goes
// on with the bits of one that was never cut.
#include "runtime/checkpoint/journal/step_journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <functional>
#include <map>
#include <new>
#include <string>
#include <tuple>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "base/system/resource_limits.h"
#include "checkpoint/journal/journal.h"
#include "checkpoint/restore/reader.h"
#include "checkpoint/storage/posix_storage.h"
#include "dtrain/checkpointer.h"
#include "dtrain/engine.h"
#include "runtime/job/job_state.h"
#include "tests/runtime/testing/chain_for_tests.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "tests/runtime/testing/saved_step.h"
#include "torch/nn/module.h"

namespace dtrain::step_journal_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::RankContext;
using testing::RecordsOf;
using testing::SavedStep;

// A chain whose forward changes a buffer and draws.
class Drawing : public testing::Chain {
 public:
  Drawing() { seen = register_buffer("seen", at::zeros({3})); }
  at::Tensor Draw(const at::Tensor& tokens) {
    {
      const at::NoGradGuard no_grad;
      seen.add_(at::rand({3}));
    }
    return Loss(tokens) * (1 + 0.01 * at::rand({}));
  }
  at::Tensor seen;
};

// The tokens of testing::Tokens, with a position that is a part of the checkpoint.
class Source : public Tracked {
 public:
  explicit Source(const Job& job) : tokens_{0, job.rank(), job.world_size(), 1} {}
  absl::StatusOr<at::Tensor> Next() { return tokens_.Next(); }
  Json SaveState() const override { return {{"call", tokens_.call}}; }
  absl::Status RestoreState(const Json& state) override {
    tokens_.call = state.at("call").get<int64_t>();
    return absl::OkStatus();
  }

 private:
  testing::Tokens tokens_;
};

struct Training {
  std::vector<std::string> overrides;
  int64_t until = 9;       // Steps.
  bool ends = true;        // False: the run is cut behind that step.
  bool fresh = false;      // --fresh.
  int64_t saves_from = 1;  // MaybeSave is called behind every step from this one on.
  std::function<void(Drawing&)> after_step = [](Drawing&) {};
  // Out.
  int64_t resumed = -1;
  std::vector<double> losses = {};
};

absl::Status Train(RankContext* context, const std::string& folder, Training& training) {
  at::set_num_threads(1);
  std::vector<std::string> overrides = {
      "train_batch_size=36",       "zero_optimization.stage3_param_persistence_threshold=0",
      "deterministic=true",        "checkpoint.keep=0",
      "checkpoint.interval=4",     "checkpoint.journal=async",
      "checkpoint.journal_share=1"};
  overrides.push_back(absl::StrCat("train_micro_batch_size_per_gpu=",
                                   context == nullptr ? 36 : 36 / context->size));
  overrides.insert(overrides.end(), training.overrides.begin(), training.overrides.end());
  DT_ASSIGN_OR_RETURN(
      auto job, testing::MakeTestJob({.run_dir = folder, .overrides = overrides, .rank = context}));
  job->state().fresh = training.fresh;
  at::manual_seed(5);
  Drawing model;
  at::Tensor average = at::zeros({10, 4});
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
  DT_ASSIGN_OR_RETURN(auto checkpoints, Checkpointer::Open(*job));
  Source source(*job);
  checkpoints->Track("engine", *engine);
  checkpoints->Track("data", source);
  checkpoints->Track("mean", {{"average", average}});
  DT_RETURN_IF_ERROR(checkpoints->RestoreLatest());
  training.resumed = engine->step();
  while (engine->step() < training.until) {
    DT_ASSIGN_OR_RETURN(const StepReport report,
                        engine->Step(source, [&](const at::Tensor& tokens) {
                          return Loss(model.Draw(tokens), tokens.size(0));
                        }));
    training.losses.push_back(report.loss);
    average.add_(static_cast<double>(engine->step()));
    training.after_step(model);
    if (engine->step() >= training.saves_from) {
      DT_RETURN_IF_ERROR(checkpoints->MaybeSave(engine->step()));
    }
  }
  return training.ends ? checkpoints->Finish() : absl::OkStatus();
}

// Trains on `ranks` ranks; gives what rank 0 found, and fails the test where a rank fails.
Training TrainOn(int ranks, const std::string& folder, const Training& training) {
  Training of_rank0 = training;
  for (const auto& result : testing::RunRanks({.size = ranks}, [&](RankContext& context) {
         Training own = training;
         const absl::Status status = Train(ranks == 1 ? nullptr : &context, folder, own);
         if (context.rank == 0) {
           DT_RETURN_IF_ERROR(
               WriteFileAtomic(folder + "/found.json",
                               DumpJson({{"resumed", own.resumed}, {"losses", own.losses}})));
         }
         return status;
       })) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
  const Json found = *ParseJson(*ReadFile(folder + "/found.json", 1 << 20), "found");
  of_rank0.resumed = found["resumed"];
  of_rank0.losses = found["losses"].get<std::vector<double>>();
  return of_rank0;
}

// How a training on one rank fails.
absl::Status Failure(const std::string& folder, const Training& training) {
  const auto results = testing::RunRanks({.size = 1}, [&](RankContext&) {
    Training own = training;
    return Train(nullptr, folder, own);
  });
  return results[0].status;
}

std::vector<double> Tail(const std::vector<double>& losses, size_t count) {
  return {losses.end() - static_cast<std::ptrdiff_t>(count), losses.end()};
}

std::vector<checkpoint::StepId> Segments(const std::string& folder) {
  const auto storage = *checkpoint::OpenPosixStorage(folder + "/checkpoints");
  return *checkpoint::ListSegments(*storage);
}

struct Way {
  const char* name;
  std::vector<std::string> overrides;
};

class StepJournalTest : public ::testing::TestWithParam<std::tuple<Way, int>> {};

INSTANTIATE_TEST_SUITE_P(
    Ways, StepJournalTest,
    ::testing::Combine(
        ::testing::Values(
            Way{"stage0", {}},
            Way{"stage0_async_save", {"checkpoint.async=true", "checkpoint.journal=sync"}},
            Way{"stage1_bf16",
                {"zero_optimization.stage=1", "bf16.enabled=true", "module_buffers=local"}},
            Way{"stage2_far",
                {"zero_optimization.stage=2",
                 R"(zero_optimization.offload_optimizer={"device":"cpu"})"}},
            Way{"stage3_skip_unused",
                {"zero_optimization.stage=3", "optimizer.skip_unused_parameters=true"}},
            Way{"stage2_fp16",
                {"zero_optimization.stage=2", "fp16.enabled=true", "fp16.initial_scale_power=30",
                 "fp16.hysteresis=1"}},
            Way{"stage1_fp32_journal",
                {"zero_optimization.stage=1", "checkpoint.journal_dtype=fp32"}}),
        ::testing::Values(1, 3)),
    [](const auto& test) {
      return absl::StrCat(std::get<0>(test.param).name, "_ranks", std::get<1>(test.param));
    });

// Twice: the second cut finds steps that two attempts have journalled.
TEST_P(StepJournalTest, ACutRunGoesOnWithTheBitsOfAnUncutOne) {
  const auto& [way, ranks] = GetParam();
  const testing::TempFolder uncut;
  const Training whole = TrainOn(ranks, uncut.path(), {.overrides = way.overrides, .until = 12});
  ASSERT_EQ(whole.losses.size(), 12U);
  const testing::TempFolder cut;
  Training first{.overrides = way.overrides, .until = 6, .ends = false};
  EXPECT_EQ(TrainOn(ranks, cut.path(), first).resumed, 0);
  first.until = 7;
  const Training second = TrainOn(ranks, cut.path(), first);
  EXPECT_EQ(second.resumed, 6);
  const Training third = TrainOn(ranks, cut.path(), {.overrides = way.overrides, .until = 12});
  EXPECT_EQ(third.resumed, 7);
  EXPECT_EQ(second.losses, (std::vector<double>{whole.losses[6]}));
  EXPECT_EQ(third.losses, Tail(whole.losses, 5));
  EXPECT_FALSE(SavedStep(uncut.path(), 12).empty());
  EXPECT_EQ(SavedStep(cut.path(), 12), SavedStep(uncut.path(), 12));
  for (const checkpoint::StepId& id : Segments(cut.path())) {
    EXPECT_EQ(id, (checkpoint::StepId{3, 12}));  // The last checkpoint needs no older segment.
  }
}

class OtherRanksTest : public ::testing::TestWithParam<std::pair<int, int>> {};

INSTANTIATE_TEST_SUITE_P(Stages, OtherRanksTest,
                         ::testing::Values(std::pair(0, 0), std::pair(2, 2), std::pair(0, 3),
                                           std::pair(3, 1)),
                         [](const auto& test) {
                           return absl::StrCat("from", test.param.first, "to", test.param.second);
                         });

TEST_P(OtherRanksTest, ReplayWhatThreeRanksHaveJournalled) {
  const auto stage = [](int number) {
    return std::vector<std::string>{absl::StrCat("zero_optimization.stage=", number)};
  };
  std::string saves[2];
  for (const bool journalled : {false, true}) {
    const testing::TempFolder folder;
    // Step 7 is in a checkpoint, or in the journal alone.
    TrainOn(3, folder.path(),
            {.overrides = stage(GetParam().first), .until = 7, .ends = !journalled});
    const Training more =
        TrainOn(2, folder.path(), {.overrides = stage(GetParam().second), .until = 9});
    EXPECT_EQ(more.resumed, 7);
    saves[journalled ? 1 : 0] = SavedStep(folder.path(), 9);
  }
  EXPECT_FALSE(saves[0].empty());
  EXPECT_EQ(saves[0], saves[1]);
}

// The bits of a journal in fp32 are those of a run without one; bf16 rounds every update.
TEST(JournalDtypeTest, OnlyBf16ChangesTheUpdates) {
  std::map<std::string, std::vector<double>> losses;
  for (const std::string& way : {std::string("off"), std::string("fp32"), std::string("bf16")}) {
    const testing::TempFolder folder;
    Training training{
        .overrides = {way == "off" ? "checkpoint.journal=off" : "checkpoint.journal_dtype=" + way}};
    losses[way] = TrainOn(1, folder.path(), training).losses;
  }
  EXPECT_EQ(losses["fp32"], losses["off"]);
  EXPECT_NE(losses["bf16"], losses["off"]);
  for (size_t i = 0; i < losses["off"].size(); ++i) {
    EXPECT_NEAR(losses["bf16"][i], losses["off"][i], 1e-3 * losses["off"][i]) << "step " << i + 1;
  }
}

// Between two checkpoints a rank writes little more than its gradients.
TEST(JournalBytesTest, TakesTwoBytesAParameterAndStep) {
  const testing::TempFolder folder;
  TrainOn(3, folder.path(), {.until = 7, .ends = false});
  uint64_t bytes = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(folder.path() + "/checkpoints/journal")) {
    bytes += entry.is_regular_file() ? entry.file_size() : 0;
  }
  const auto storage = *checkpoint::OpenPosixStorage(folder.path() + "/checkpoints");
  const int64_t parameters =
      checkpoint::ReadManifest(*storage, {1, 4})->state.engine["total_elements"];
  // Steps 5 to 7. Parts that do not grow with the model (generators, headers) take 10 kB a rank and
  // step.
  EXPECT_LE(bytes, static_cast<uint64_t>(3 * parameters) * 21 / 10 + 3 * 3 * 10'000);
  EXPECT_GE(bytes, static_cast<uint64_t>(3 * parameters) * 2);
}

// A program that calls MaybeSave behind some steps alone resumes behind the last of these.
TEST(JournalCallsTest, GoesOnFromBehindTheLastMaybeSave) {
  const testing::TempFolder uncut;
  const Training whole = TrainOn(1, uncut.path(), {.until = 9});
  const testing::TempFolder folder;
  Training sparse{.until = 7, .ends = false, .saves_from = 7};  // Not behind 5 and 6.
  sparse.overrides = {"checkpoint.interval=100"};
  TrainOn(1, folder.path(), sparse);
  Training more{.until = 9};
  more.overrides = {"checkpoint.interval=100"};
  const Training resumed = TrainOn(1, folder.path(), more);
  EXPECT_EQ(resumed.resumed, 7);
  EXPECT_EQ(resumed.losses, Tail(whole.losses, 2));
}

// A rank's last record is torn: the run goes on one step earlier.
TEST(JournalDamageTest, LosesOnlyTheStepsThatAreNotWhole) {
  const testing::TempFolder uncut;
  const Training whole = TrainOn(2, uncut.path(), {.until = 9});
  for (const int64_t cut : {1, 5000}) {  // Bytes.
    const testing::TempFolder folder;
    TrainOn(2, folder.path(), {.until = 7, .ends = false});
    const std::string file =
        absl::StrCat(folder.path(), "/checkpoints/",
                     checkpoint::SegmentPath(Segments(folder.path()).back(), 1, 2));
    std::filesystem::resize_file(file,
                                 std::filesystem::file_size(file) - static_cast<uintmax_t>(cut));
    const Training resumed = TrainOn(2, folder.path(), {.until = 9});
    EXPECT_EQ(resumed.resumed, 6);
    EXPECT_EQ(resumed.losses, Tail(whole.losses, 3));
  }
}

TEST(JournalSettingsTest, AreThoseOfTheSteps) {
  const testing::TempFolder folder;
  TrainOn(1, folder.path(), {.until = 6, .ends = false});
  const absl::Status refused =
      Failure(folder.path(), {.overrides = {"optimizer.params.lr=0.5"}, .until = 9});
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("steps 5 to 6 are in the journal alone"));
  EXPECT_THAT(refused.message(), HasSubstr("optimizer.params.lr was"));
}

// Steps of one precision are not taken again in another, and none is lost unasked.
TEST(JournalSettingsTest, AnotherPrecisionWaitsUntilTheStepsAreInACheckpoint) {
  const testing::TempFolder folder;
  TrainOn(1, folder.path(), {.until = 6, .ends = false});
  const Training in_bf16 = {.overrides = {"bf16.enabled=true"}, .until = 9};
  const absl::Status refused = Failure(folder.path(), in_bf16);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("steps 5 to 6 are in the journal alone"));
  EXPECT_THAT(refused.message(), HasSubstr("bf16.enabled was false, now true"));
  EXPECT_THAT(refused.message(), HasSubstr("to go on from step 4, which loses 2 steps"));
  EXPECT_EQ(TrainOn(1, folder.path(), {.until = 7}).resumed, 6) << "as before";
  EXPECT_EQ(TrainOn(1, folder.path(), in_bf16).resumed, 7) << "the end of that run is saved";
}

TEST(JournalSettingsTest, WhatItCannotHoldIsRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {{"optimizer.type=Lamb", "Lamb"},
                                                       {"optimizer.type=Muon", "Muon"}};
  for (const auto& [way, name] : cases) {
    const testing::TempFolder folder;
    const absl::Status refused = Failure(folder.path(), {.overrides = {way}});
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented) << refused;
    EXPECT_THAT(refused.message(), HasSubstr("checkpoint.journal cannot hold steps of"));
    EXPECT_THAT(absl::AsciiStrToLower(refused.message()), HasSubstr(absl::AsciiStrToLower(name)));
  }
}

TEST(JournalSettingsTest, StepsOfSeveralEnginesAreRefusedByTheirNumber) {
  const testing::TempFolder folder;
  const auto results = testing::RunRanks({.size = 1}, [&](RankContext&) -> absl::Status {
    at::set_num_threads(1);
    DT_ASSIGN_OR_RETURN(
        auto job,
        testing::MakeTestJob({.run_dir = folder.path(),
                              .overrides = {"train_batch_size=36", "checkpoint.journal=async"}}));
    testing::Chain first;
    testing::Chain second;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, first));
    DT_ASSIGN_OR_RETURN(auto other, Engine::Create(*job, second));
    DT_ASSIGN_OR_RETURN(auto checkpoints, Checkpointer::Open(*job));
    checkpoints->Track("first", *engine);
    checkpoints->Track("second", *other);
    return checkpoints->RestoreLatest();
  });
  EXPECT_EQ(results[0].status.code(), absl::StatusCode::kUnimplemented) << results[0].status;
  EXPECT_THAT(std::string(results[0].status.message()),
              HasSubstr("checkpoint.journal cannot hold the steps of 2 engines"));
}

// No replay would repeat what a program writes between steps, so the journal says so and ends.
TEST(JournalOffTest, WhereTheProgramChangesWeights) {
  const testing::TempFolder folder;
  Training training{.until = 7, .ends = false};
  training.after_step = [](Drawing& model) {
    const at::NoGradGuard no_grad;
    model.norm.clamp_(-0.01, 0.01);
  };
  TrainOn(1, folder.path(), training);
  const std::string records = RecordsOf(folder.path(), "journal_off");
  EXPECT_THAT(records, HasSubstr("the program has changed weights between two steps"));
  Training more{.until = 8};
  EXPECT_EQ(TrainOn(1, folder.path(), more).resumed, 4);  // The checkpoint.
}

// One number, once, and past LibTorch's counters of writes.
TEST(JournalOffTest, WhereTheProgramWritesToOneElement) {
  for (const bool leaves_out : {false, true}) {
    const testing::TempFolder folder;
    Training training{.until = 7, .ends = false};
    training.overrides = {
        absl::StrCat("optimizer.skip_unused_parameters=", leaves_out ? "true" : "false")};
    training.after_step = [steps = 0](Drawing& model) mutable {
      if (++steps == 6) {
        *model.norm.mutable_data_ptr<float>() += 1;
      }
    };
    TrainOn(1, folder.path(), training);
    EXPECT_THAT(RecordsOf(folder.path(), "journal_off"),
                HasSubstr("the program has changed weights between two steps"));
    Training more{.overrides = training.overrides, .until = 8};
    EXPECT_EQ(TrainOn(1, folder.path(), more).resumed, 6);  // Step 7 began with another weight.
  }
}

TEST(JournalOffTest, WhereTheDiskIsSlowerThanTheSteps) {
  const testing::TempFolder folder;
  Training training{.overrides = {"checkpoint.journal_share=1e-9", "checkpoint.interval=25"},
                    .until = 50};
  TrainOn(1, folder.path(), training);
  const std::string records = RecordsOf(folder.path(), "journal_off");
  EXPECT_THAT(records, HasSubstr("the disk was busy with it for"));
  // It began anew with the checkpoint of step 25.
  EXPECT_EQ(std::vector<std::string>(absl::StrSplit(records, '\n', absl::SkipEmpty())).size(), 2U);
}

// A limit on file sizes stands for a full disk.
TEST(JournalOffTest, WhereAWriteFailsAndTrainingGoesOn) {
  const testing::TempFolder folder;
  Training training{.until = 7, .ends = false};
  training.after_step = [steps = 0](Drawing&) mutable {
    if (++steps == 5) {
      EndWithALineAtLimits();  // Every program of dtrain calls it.
      const rlimit small{.rlim_cur = 1000, .rlim_max = RLIM_INFINITY};
      setrlimit(RLIMIT_FSIZE, &small);
    }
  };
  EXPECT_EQ(TrainOn(1, folder.path(), training).losses.size(), 7U);
  EXPECT_EQ(TrainOn(1, folder.path(), {.until = 8}).resumed, 4);
}

TEST(JournalThreadTest, AnExceptionEndsTheSegmentAsAFailedWriteDoes) {
  const testing::TempFolder folder;
  const auto storage = *checkpoint::OpenPosixStorage(folder.path());
  JournalThread thread(*storage);
  thread.Begin({.job = "test",
                .id = {1, 0},
                .layout_hash = "0123456789abcdef",
                .settings = Json::object(),
                .ranges = {{0, 1000}}});
  thread.Append({.step = 1,
                 .update = []() -> absl::StatusOr<KeptUpdate> { throw std::bad_alloc(); },
                 .after = nullptr});
  thread.Append({.step = 2,
                 .update = []() -> absl::StatusOr<KeptUpdate> { return KeptUpdate(); },
                 .after = nullptr});
  thread.WaitUntilIdle();
  EXPECT_THAT(std::string(thread.failure().message()), HasSubstr("in the step journal's thread"));
  EXPECT_EQ(thread.work().steps, 0) << "step 2 counts as durable, and no reader would find it";
}

TEST(JournalOffTest, ARunThatGoesOnWithoutAJournalRemovesItWithItsFirstCheckpoint) {
  const testing::TempFolder folder;
  TrainOn(1, folder.path(), {.until = 6, .ends = false});
  EXPECT_THAT(Segments(folder.path()), ElementsAre(checkpoint::StepId{1, 4}));
  const Training off{.overrides = {"checkpoint.journal=off"}, .until = 7, .ends = false};
  for (int i = 0; i < 2; ++i) {  // Until then each attempt needs its steps.
    EXPECT_EQ(TrainOn(1, folder.path(), off).resumed, 6);
    EXPECT_THAT(Segments(folder.path()), ElementsAre(checkpoint::StepId{1, 4}));
  }
  TrainOn(1, folder.path(), {.overrides = off.overrides, .until = 8});
  EXPECT_THAT(Segments(folder.path()), IsEmpty());
}

// A fresh start takes nothing from the journal of the run before.
TEST(JournalFreshTest, BeginsAtStepZero) {
  const testing::TempFolder folder;
  TrainOn(1, folder.path(), {.until = 6, .ends = false});
  EXPECT_EQ(TrainOn(1, folder.path(), {.until = 5, .ends = false, .fresh = true}).resumed, 0);
  EXPECT_EQ(TrainOn(1, folder.path(), {.until = 6}).resumed, 5);
}

}  // namespace
}  // namespace dtrain::step_journal_test
