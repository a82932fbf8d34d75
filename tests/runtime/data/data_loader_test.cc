// A dataset of the program's own: the same samples in each global step at any number of ranks,
// threads and accumulation, also after a resume; passes that read each sample once; mistakes that
// are named on all ranks.
#include "dtrain/data_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dtrain/batch_source.h"
#include "dtrain/engine.h"
#include "tests/runtime/testing/chain_for_tests.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "tests/runtime/testing/rank_numbers.h"

namespace dtrain::data_loader_test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using testing::NumbersOf;
using testing::RankContext;

constexpr int64_t kGlobalBatch = 6;

// Sample i is {i, [i, 10 i]}.
struct Numbers {
  int64_t count = 0;
  int64_t size() const { return count; }
  Sample Get(int64_t index) const {
    return {at::scalar_tensor(index, at::kLong),
            at::tensor(std::vector<double>{double(index), 10.0 * double(index)})};
  }
};

// A dataset with one sample that cannot be read.
struct Broken {
  enum class How { kThrows, kThrowsANumber, kReturns, kEnds };
  How how = How::kThrows;
  size_t size() const { return 6; }
  absl::StatusOr<Sample> Get(int64_t index) const {
    if (index == 3) {
      if (how == How::kThrows) {
        throw std::runtime_error("boom\nand more");
      }
      if (how == How::kThrowsANumber) {
        throw 7;  // As some libraries do.
      }
      return how == How::kReturns ? absl::NotFoundError("no such file") : EndOfData();
    }
    return Sample{at::zeros({2})};
  }
};

struct Split {
  int size = 1;
  int accumulation = 1;
  int workers = 2;
};

absl::StatusOr<std::unique_ptr<Job>> MakeJob(RankContext* context, const std::string& folder,
                                             const Split& split,
                                             std::vector<std::string> more = {}) {
  at::set_num_threads(1);
  more.push_back(absl::StrCat("train_batch_size=", kGlobalBatch));
  more.push_back(absl::StrCat("gradient_accumulation_steps=", split.accumulation));
  return testing::MakeTestJob({.run_dir = folder, .overrides = std::move(more), .rank = context});
}

// The indices that all ranks take in the next `steps` global steps, in the order of the row.
absl::Status AppendSteps(Job& job, DataLoader& loader, int steps, std::vector<double>& numbers) {
  const int64_t micro_batch = job.config().micro_batch();
  const int64_t accumulation = job.config().gradient_accumulation_steps();
  const at::Tensor all = at::zeros({steps, kGlobalBatch}, at::kDouble);
  for (int step = 0; step < steps; ++step) {
    for (int64_t micro = 0; micro < accumulation; ++micro) {
      DT_ASSIGN_OR_RETURN(SampleBatch batch, loader.Next());
      if (batch.samples != micro_batch || batch[1].size(1) != 2 ||
          !at::equal(batch[1].select(1, 1), batch[0].to(at::kDouble) * 10)) {
        return absl::InternalError("not the samples of one micro-batch");
      }
      const int64_t first = (micro * job.world_size() + job.rank()) * micro_batch;
      all[step].narrow(0, first, micro_batch).copy_(batch[0]);
    }
  }
  DT_RETURN_IF_ERROR(job.AllReduce(all));
  numbers.insert(numbers.end(), all.const_data_ptr<double>(),
                 all.const_data_ptr<double>() + all.numel());
  return absl::OkStatus();
}

// `steps` steps of `dataset` on the ranks of `split`, from `from` on.
std::vector<double> Steps(const Split& split, int64_t count, const DataLoaderOptions& options,
                          int steps, const Json& from = {}) {
  return NumbersOf(split.size, [&](RankContext& context, std::vector<double>& numbers) {
    return [&]() -> absl::Status {
      const testing::TempFolder folder;
      DT_ASSIGN_OR_RETURN(auto job, MakeJob(&context, folder.path(), split));
      const Numbers dataset{count};
      DataLoaderOptions own = options;
      own.workers = split.workers;
      DT_ASSIGN_OR_RETURN(auto loader, DataLoader::Open(*job, dataset, own));
      if (!from.is_null()) {
        DT_RETURN_IF_ERROR(loader->RestoreState(from));
      }
      return AppendSteps(*job, *loader, steps, numbers);
    }();
  });
}

TEST(DataLoaderTest, EveryNumberOfRanksMicroBatchesAndThreadsReadsTheSameSamples) {
  // Two epochs of 10 samples and a part of the third, across the ends of epochs.
  const std::vector<double> expected = Steps({}, 10, {}, 4);
  ASSERT_EQ(expected.size(), 4U * kGlobalBatch);
  for (int epoch = 0; epoch < 2; ++epoch) {
    EXPECT_THAT(
        std::vector<double>(expected.begin() + 10 * epoch, expected.begin() + 10 * (epoch + 1)),
        ::testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  }
  for (const Split& split : {Split{1, 3, 0}, Split{2, 1, 4}, Split{3, 2, 1}, Split{2, 3, 0}}) {
    EXPECT_EQ(Steps(split, 10, {}, 4), expected)
        << split.size << " ranks, " << split.accumulation << " micro-batches, " << split.workers;
  }
  EXPECT_NE(Steps({}, 10, {.seed = 7}, 4), expected);
}

TEST(DataLoaderTest, DropLastLeavesOutWhatFillsNoGlobalBatch) {
  const std::vector<double> in_order =
      Steps({.size = 2}, 8, {.shuffle = false, .drop_last = true}, 2);
  EXPECT_EQ(in_order, (std::vector<double>{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5}));
  const std::vector<double> spanning = Steps({.size = 2}, 8, {.shuffle = false}, 2);
  EXPECT_EQ(spanning, (std::vector<double>{0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3}));
}

TEST(DataLoaderTest, ARunGoesOnAtTheSameSampleWithAnotherNumberOfRanks) {
  at::set_num_threads(1);
  const std::vector<double> all = Steps({}, 10, {}, 7);
  Json saved;
  {
    const testing::TempFolder folder;
    auto job = *MakeJob(nullptr, folder.path(), {});
    const Numbers dataset{10};
    auto loader = *DataLoader::Open(*job, dataset);
    std::vector<double> first;
    ASSERT_TRUE(AppendSteps(*job, *loader, 3, first).ok());
    saved = loader->SaveState();
    EXPECT_EQ(loader->epoch(), 1);
    EXPECT_DOUBLE_EQ(loader->steps_per_epoch(), 10.0 / kGlobalBatch) << "batches span epochs";
    // A step that fails puts it back.
    ASSERT_TRUE(AppendSteps(*job, *loader, 2, first).ok());
    ASSERT_TRUE(loader->RestoreState(saved).ok());
    EXPECT_EQ(loader->SaveState(), saved);
    // Another dataset, or another order, is refused with its name.
    const Numbers longer{11};
    auto other = *DataLoader::Open(*job, longer, {.name = "numbers"});
    EXPECT_THAT(
        std::string(other->RestoreState(saved).message()),
        ::testing::AllOf(HasSubstr("dataset \"numbers\""), HasSubstr("size was 10, now 11")));
    auto reseeded = *DataLoader::Open(*job, dataset, {.seed = 99});
    EXPECT_TRUE(absl::IsFailedPrecondition(reseeded->RestoreState(saved)));
    EXPECT_TRUE(absl::IsInvalidArgument(loader->RestoreState(Json{{"sample", -1}})));
  }
  const std::vector<double> rest(all.begin() + 3 * kGlobalBatch, all.end());
  for (const int size : {1, 2, 3}) {
    EXPECT_EQ(Steps({.size = size}, 10, {}, 4, saved), rest) << size;
  }
}

class EverySampleOnce : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, EverySampleOnce, ::testing::Values(1, 2, 3));

// A sum of 2^i over samples: it tells which were read. 7 samples are no multiple of any batch.
TEST_P(EverySampleOnce, AnEvaluationToTheEndReadsEachAndTrainingGoesOnWhereItWas) {
  for (const int stage : {0, 3}) {
    const std::vector<double> numbers =
        NumbersOf(GetParam(), [&](RankContext& context, std::vector<double>& out) -> absl::Status {
          const testing::TempFolder folder;
          DT_ASSIGN_OR_RETURN(
              auto job, MakeJob(&context, folder.path(), {},
                                {"eval_batches=1", absl::StrCat("zero_optimization.stage=", stage),
                                 "zero_optimization.stage3_param_persistence_threshold=0"}));
          testing::Chain model;
          DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
          const Numbers dataset{7};
          DT_ASSIGN_OR_RETURN(auto loader, DataLoader::Open(*job, dataset));
          DT_RETURN_IF_ERROR(loader->Next().status());
          const Json before = loader->SaveState();
          const auto loss = [&](SampleBatch& batch) {
            const at::Tensor nothing = model.Loss(at::zeros({2}, at::kLong)) * 0;
            return Loss(at::pow(2.0, batch[0].to(at::kDouble)).sum() + nothing, batch.samples);
          };
          DT_ASSIGN_OR_RETURN(double value, engine->Evaluate(*loader, loss));
          out.push_back(value);
          DT_ASSIGN_OR_RETURN(value, engine->Evaluate(*loader, loss, {.to_end = true}));
          out.push_back(value);
          return loader->SaveState() == before ? absl::OkStatus()
                                               : absl::InternalError("another place");
        });
    ASSERT_EQ(numbers.size(), 2U);
    EXPECT_NEAR(numbers[0], 63.0 / 6, 1e-9) << "one global batch";
    EXPECT_NEAR(numbers[1], 127.0 / 7, 1e-9);
  }
}

TEST(DataLoaderTest, APassMayBeReadByTheProgramItself) {
  at::set_num_threads(1);
  const testing::TempFolder folder;
  auto job = *MakeJob(nullptr, folder.path(), {});
  const Numbers dataset{8};
  auto loader = *DataLoader::Open(*job, dataset);
  loader->BeginPass();
  std::vector<int64_t> sizes;
  for (auto batch = loader->Next(); batch.ok() || !IsEndOfData(batch.status());
       batch = loader->Next()) {
    ASSERT_TRUE(batch.ok()) << batch.status();
    EXPECT_EQ((*batch)[0][0].item<int64_t>(), sizes.empty() ? 0 : 6);
    sizes.push_back(batch->samples);
  }
  loader->EndPass();
  EXPECT_EQ(sizes, (std::vector<int64_t>{6, 2}));
  EXPECT_EQ(loader->epoch(), 0);
}

// The message of a step that reads this dataset.
std::string SaidOf(const Broken& dataset, const DataLoaderOptions& options = {.name = "photos"}) {
  at::set_num_threads(1);
  const testing::TempFolder folder;
  auto job = *MakeJob(nullptr, folder.path(), {});
  testing::Chain model;
  auto engine = *Engine::Create(*job, model);
  auto loader = *DataLoader::Open(*job, dataset, options);
  const auto step = engine->Step(
      *loader, [&](SampleBatch&) { return Loss(model.Loss(at::zeros({2}, at::kLong)), 2); });
  EXPECT_TRUE(absl::IsInvalidArgument(step.status()) || absl::IsNotFound(step.status()));
  EXPECT_EQ(step.status().message().find('\n'), std::string::npos);
  return std::string(step.status().message());
}

TEST(DataLoaderTest, ASampleThatCannotBeReadIsNamedInOneLine) {
  for (const int workers : {0, 2}) {
    const DataLoaderOptions options{.name = "photos", .workers = workers};
    EXPECT_THAT(SaidOf({Broken::How::kThrows}, options),
                HasSubstr("in sample 3 of dataset \"photos\": boom"));
    EXPECT_THAT(SaidOf({Broken::How::kThrowsANumber}, options),
                HasSubstr("in sample 3 of dataset \"photos\": something was thrown that is no "
                          "std::exception"));
    EXPECT_THAT(SaidOf({Broken::How::kReturns}, options),
                HasSubstr("sample 3 of dataset \"photos\": no such file"));
    EXPECT_THAT(SaidOf({Broken::How::kEnds}, options), HasSubstr("Get returned EndOfData()"));
  }
}

TEST(DataLoaderTest, SamplesOfDifferentShapesNeedAFunctionOfTheProgramsOwn) {
  struct Words {
    int64_t size() const { return 6; }
    Sample Get(int64_t index) const { return {at::ones({index + 1})}; }
  };
  at::set_num_threads(1);
  const testing::TempFolder folder;
  auto job = *MakeJob(nullptr, folder.path(), {});
  const Words words;
  auto stacked = *DataLoader::Open(*job, words, {.name = "words", .shuffle = false});
  EXPECT_THAT(std::string(stacked->Next().status().message()),
              ::testing::AllOf(HasSubstr("collation of dataset \"words\""), HasSubstr("Float [1]"),
                               HasSubstr("Float [2]"), HasSubstr("DataLoaderOptions::collate")));
  DataLoaderOptions padded{.name = "words", .shuffle = false};
  padded.collate = [](std::vector<Sample> samples) -> absl::StatusOr<std::vector<at::Tensor>> {
    const at::Tensor rows = at::zeros({static_cast<int64_t>(samples.size()), 6});
    for (size_t i = 0; i < samples.size(); ++i) {
      rows[static_cast<int64_t>(i)].narrow(0, 0, samples[i][0].size(0)).copy_(samples[i][0]);
    }
    return std::vector<at::Tensor>{rows};
  };
  auto loader = *DataLoader::Open(*job, words, padded);
  const auto batch = loader->Next();
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_TRUE(at::equal((*batch)[0], at::ones({6, 6}).tril()));
}

// Gives Open's message on each rank; rank r's dataset has sizes[r] samples, and `last` are the last
// rank's options if they are others.
std::vector<std::string> SaidOnOpening(const std::vector<int64_t>& sizes,
                                       const DataLoaderOptions& options,
                                       const std::optional<DataLoaderOptions>& last = {}) {
  std::vector<std::string> said;
  const auto results =
      testing::RunRanks({.size = static_cast<int>(sizes.size())}, [&](RankContext& context) {
        const testing::TempFolder folder;
        auto job = MakeJob(&context, folder.path(), {});
        const Numbers dataset{sizes[static_cast<size_t>(context.rank)]};
        const bool is_last = context.rank == context.size - 1;
        return job.ok()
                   ? DataLoader::Open(**job, dataset, is_last ? last.value_or(options) : options)
                         .status()
                   : job.status();
      });
  for (const auto& result : results) {
    EXPECT_TRUE(absl::IsInvalidArgument(result.status)) << result.status;
    said.emplace_back(result.status.message());
  }
  return said;
}

TEST(DataLoaderTest, ADatasetThatDiffersBetweenRanksIsRefusedByNameOnAllOfThem) {
  EXPECT_THAT(SaidOnOpening({12, 12, 11}, {.name = "photos"}),
              Each(::testing::AllOf(HasSubstr("dataset \"photos\" of 12 samples"),
                                    HasSubstr("on rank 0 is \"photos\" of 11 samples"),
                                    HasSubstr("on rank 2"))));
}

TEST(DataLoaderTest, WhatCannotBeReadIsRefusedOnAllRanks) {
  EXPECT_THAT(SaidOnOpening({0, 0}, {.name = "photos"}),
              Each(HasSubstr("dataset \"photos\" has 0 samples")));
  EXPECT_THAT(SaidOnOpening({5, 5}, {.name = "photos", .drop_last = true}),
              Each(HasSubstr("has 5 samples, fewer than the global batch of 6")));
  EXPECT_THAT(SaidOnOpening({9, 9}, {.workers = -1}), Each(HasSubstr("workers is -1; allowed: 0")));
  EXPECT_THAT(SaidOnOpening({9, 9}, {.prefetch = 0}), Each(HasSubstr("prefetch is 0; allowed: 1")));
}

TEST(DataLoaderTest, AnOptionThatIsWrongOnOneRankIsNamedWithItsRankOnAllOfThem) {
  const DataLoaderOptions good{.name = "photos"};
  EXPECT_THAT(SaidOnOpening({9, 9, 9}, good, DataLoaderOptions{.name = "photos", .workers = -1}),
              Each(HasSubstr("on rank 2: dataset \"photos\": DataLoaderOptions::workers is -1")));
  EXPECT_THAT(SaidOnOpening({9, 9}, good, DataLoaderOptions{.name = "photos", .prefetch = 0}),
              Each(HasSubstr("on rank 1: dataset \"photos\": DataLoaderOptions::prefetch is 0")));
  EXPECT_THAT(SaidOnOpening({9, 9}, good, DataLoaderOptions{.name = "photos", .collate = nullptr}),
              Each(HasSubstr("on rank 1: dataset \"photos\": DataLoaderOptions::collate is null")));
  EXPECT_THAT(SaidOnOpening({9, 9}, {.gradient_accumulation_steps = 0}),
              Each(::testing::StartsWith("dataset \"dataset\": DataLoaderOptions::gradient_acc")));
}

TEST(DataLoaderTest, ASizeThatThrowsOnOneRankEndsAllOfThem) {
  struct Folder {
    bool is_there = true;
    int64_t size() const { return is_there ? 9 : throw std::runtime_error("no such folder"); }
    Sample Get(int64_t index) const { return {at::full({1}, index)}; }
  };
  for (const auto& result : testing::RunRanks({.size = 2}, [&](RankContext& context) {
         const testing::TempFolder folder;
         auto job = MakeJob(&context, folder.path(), {});
         const Folder dataset{context.rank == 0};
         return job.ok() ? DataLoader::Open(**job, dataset, {.name = "photos"}).status()
                         : job.status();
       })) {
    EXPECT_THAT(std::string(result.status.message()),
                HasSubstr("on rank 1: in size() of dataset \"photos\": no such folder"));
  }
}

// 20 samples in steps of 2 ranks x micro-batch 3 x the engine's own 3 micro-batches.
TEST(DataLoaderTest, AnEpochHasTheStepsOfTheEnginesOwnAccumulation) {
  const std::vector<double> numbers =
      NumbersOf(2, [](RankContext& context, std::vector<double>& out) -> absl::Status {
        const testing::TempFolder folder;
        DT_ASSIGN_OR_RETURN(auto job,
                            MakeJob(&context, folder.path(), {},
                                    {R"(engines={"critic":{"gradient_accumulation_steps":3}})"}));
        const Numbers dataset{20};
        DT_ASSIGN_OR_RETURN(auto run, DataLoader::Open(*job, dataset, {.drop_last = true}));
        DT_ASSIGN_OR_RETURN(
            auto own,
            DataLoader::Open(
                *job, dataset,
                {.drop_last = true,
                 .gradient_accumulation_steps =
                     job->config().engine_settings("critic").gradient_accumulation_steps}));
        out = {double(run->steps_per_epoch()), double(own->steps_per_epoch())};
        for (int round = 0; round < 3; ++round) {
          DT_RETURN_IF_ERROR(own->Next().status());
        }
        out.push_back(double(own->epoch()));  // The 2 samples that fill no step are left out.
        return absl::OkStatus();
      });
  EXPECT_THAT(numbers, ::testing::ElementsAre(3, 1, 1));
}

// A source of the program's own without a Description is called by its type.
TEST(DataLoaderTest, ASourceThatThrowsIsNamed) {
  struct Camera {
    absl::StatusOr<at::Tensor> Next() { throw std::runtime_error("no signal"); }
  };
  at::set_num_threads(1);
  const testing::TempFolder folder;
  auto job = *MakeJob(nullptr, folder.path(), {});
  testing::Chain model;
  auto engine = *Engine::Create(*job, model);
  Camera camera;
  const auto step = engine->Step(
      camera, [&](const at::Tensor&) { return Loss(model.Loss(at::zeros({2}, at::kLong)), 2); });
  EXPECT_THAT(std::string(step.status().message()),
              ::testing::AllOf(HasSubstr("in the data source"), HasSubstr("Camera: no signal")));
}

}  // namespace
}  // namespace dtrain::data_loader_test
