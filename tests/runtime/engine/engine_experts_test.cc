// Mixtures of experts of which each rank's data uses another one: ranks read and differentiate
// other weights. Their weights end as those of a plain LibTorch loop over the whole global batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "runtime/optimizer/engine_state.h"
#include "tests/runtime/testing/experts_for_tests.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::engine_experts_test {
namespace {

using testing::AnotherOnEachRank;
using testing::ExpertsModel;
using testing::ExpertsSource;
using ::testing::HasSubstr;
using testing::kNoExpert;
using testing::MoreOnSomeRanks;
using testing::NoneOnSomeRanks;
using ::testing::Not;
using testing::RankContext;
using testing::Router;
using Way = testing::ExpertsWay;
using Shape = Way::Shape;
using Units = std::vector<std::vector<std::string>>;

absl::StatusOr<std::unique_ptr<Job>> MakeJob(RankContext& context, const std::string& folder,
                                             const Way& way, const std::string& group) {
  return testing::MakeTestJob({.run_dir = folder,
                               .overrides = testing::ExpertsOverrides(way),
                               .rank = &context,
                               .group = group});
}

absl::StatusOr<testing::ExpertsOutcome> Train(RankContext& context, const Way& way,
                                              const std::string& group) {
  const testing::TempFolder folder;
  DT_ASSIGN_OR_RETURN(auto job, MakeJob(context, folder.path(), way, group));
  return testing::TrainExperts(*job, way);
}

void ExpectAsInOneProcess(int size, std::vector<Way> ways, double tolerance = 1e-4) {
  for (Way& way : ways) {
    way.size = size;
  }
  const auto results = testing::RunRanks(
      {.size = size, .time_bound = absl::Seconds(120)}, [&](RankContext& context) -> absl::Status {
        at::set_num_threads(1);
        for (size_t i = 0; i < ways.size(); ++i) {
          const auto outcome = Train(context, ways[i], absl::StrCat("way-", i));
          DT_RETURN_IF_ERROR(Annotate(outcome.status(), testing::Described(ways[i])));
          DT_RETURN_IF_ERROR(Annotate(
              testing::CompareExperts(*outcome, testing::ExpectedOfExperts(ways[i]), tolerance),
              testing::Described(ways[i])));
        }
        return absl::OkStatus();
      });
  for (const auto& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

const Units kMixtures = {{"first"}, {"second"}};
constexpr char kByName[] = R"(zero_optimization.leaf_module.names=["first","second"])";
constexpr char kByClass[] = R"(zero_optimization.leaf_module.classes=["Mixture"])";
constexpr char kBySuffix[] = R"(zero_optimization.leaf_module.name_suffixes=["st","second"])";

TEST(EngineExpertsTest, AnotherExpertOnEachRankTrainsAsOneProcessWouldHoweverTheUnitIsNamed) {
  for (const int size : {2, 3}) {
    std::vector<Way> ways = {{.stage = 2},
                             {.units = kMixtures},
                             {.more = {kByName}},
                             {.more = {kByClass}},
                             {.more = {kBySuffix}},
                             {.units = {{"first", "second"}}},
                             {.units = {{"first.experts"}, {"second.experts"}}},
                             {.units = {{"first"}}, .more = {kByName}}};
    ExpectAsInOneProcess(size, ways);
  }
}

TEST(EngineExpertsTest, AnyNumberOfExpertsAndNoneAfterTheFirstMicroBatch) {
  for (const int size : {2, 3}) {
    std::vector<Way> ways;
    for (const Router& router : {Router(MoreOnSomeRanks), Router(NoneOnSomeRanks)}) {
      for (const int stage : {2, 3}) {
        ways.push_back({.stage = stage, .router = router, .units = kMixtures});
      }
      ways.push_back({.accumulation = 3, .router = router, .units = kMixtures});
      ways.push_back({.router = router, .units = {{"first.experts"}, {"second.experts"}}});
      ways.push_back({.shape = Shape::kMixtureAtBothEnds,
                      .router = router,
                      .units = {{"first.experts"}, {"second.experts"}}});
    }
    ExpectAsInOneProcess(size, ways);
  }
}

TEST(EngineExpertsTest, InRecomputedSegmentsTiedOrFrozen) {
  for (const Router& router : {Router(AnotherOnEachRank), Router(NoneOnSomeRanks)}) {
    std::vector<Way> ways = {
        {.shape = Shape::kRecomputed, .router = router, .units = kMixtures},
        {.accumulation = 2,
         .shape = Shape::kRecomputed,
         .router = router,
         .units = {{"first.experts"}, {"second.experts"}}},
        {.shape = Shape::kTied, .router = router, .units = {{"first"}}},
        {.shape = Shape::kTied, .router = router, .units = {{"first.experts"}}},
        {.shape = Shape::kTied, .router = router, .more = {kByClass}},
        {.shape = Shape::kFrozenExperts, .router = router, .units = kMixtures},
        {.shape = Shape::kFrozenRest, .router = MoreOnSomeRanks, .units = kMixtures}};
    ExpectAsInOneProcess(2, ways);
    ExpectAsInOneProcess(3, ways);
  }
}

TEST(EngineExpertsTest, WithLimitsPersistentWeightsSmallGroupsAndFarMemory) {
  const std::vector<std::vector<std::string>> with = {
      {"zero_optimization.stage3_prefetch_bucket_size=0",
       "zero_optimization.stage3_max_reuse_distance=0"},
      {"zero_optimization.stage3_max_live_parameters=70000"},
      {"zero_optimization.stage3_param_persistence_threshold=100000"},
      {"zero_optimization.zero_hpz_partition_size=2"},
      {"zero_optimization.offload_param.device=cpu"},
      {"deterministic=true"}};
  std::vector<Way> ways;
  for (const auto& more : with) {
    ways.push_back(
        {.accumulation = 2, .router = NoneOnSomeRanks, .units = kMixtures, .more = more});
    ways.push_back({.router = MoreOnSomeRanks, .units = kMixtures, .more = more});
  }
  // A leaf module is live as a whole, whatever the limit.
  ways.push_back({.more = {kByName, "zero_optimization.stage3_max_live_parameters=1000"}});
  ExpectAsInOneProcess(2, ways);
  ExpectAsInOneProcess(4, {{.router = NoneOnSomeRanks,
                            .units = kMixtures,
                            .more = {"zero_optimization.zero_hpz_partition_size=2"}}});
}

TEST(EngineExpertsTest, InTwoBytesAndInt8Blocks) {
  ExpectAsInOneProcess(2,
                       {{.units = kMixtures, .more = {"bf16.enabled=true"}},
                        {.units = kMixtures,
                         .more = {"zero_optimization.zero_quantized_weights=true",
                                  "zero_optimization.zero_quantized_gradients=true"}}},
                       0.1);
}

// The error of each rank's first step.
std::vector<std::string> Refusals(const Way& way) {
  std::vector<std::string> messages;
  const auto results =
      testing::RunRanks({.size = way.size}, [&](RankContext& context) -> absl::Status {
        at::set_num_threads(1);
        return Train(context, way, "world").status();
      });
  for (const auto& result : results) {
    EXPECT_EQ(ExitCodeFor(result.status), kExitUsage) << result.status;
    EXPECT_LT(result.duration, absl::Seconds(45));
    messages.emplace_back(result.status.message());
    EXPECT_THAT(messages.back(), Not(HasSubstr("\n")));
  }
  return messages;
}

TEST(EngineExpertsTest, WithoutAUnitTheErrorNamesTheParametersAndTheRemedy) {
  for (const std::string& message : Refusals({})) {
    EXPECT_THAT(message, HasSubstr("ranks differ at collective"));
    EXPECT_THAT(message, HasSubstr("rank 0 read first.experts.0.up where rank 1 read "
                                   "first.experts.1.up: "));
    EXPECT_THAT(message, HasSubstr("name the module that holds them (first.experts) in "
                                   "EngineOptions::units or zero_optimization.leaf_module.names"));
  }
}

TEST(EngineExpertsTest, WhereSmallExpertsStayWholeTheErrorNamesTheirGradients) {
  for (const std::string& message :
       Refusals({.router = MoreOnSomeRanks,
       .more = {"zero_optimization.stage3_param_persistence_threshold=8192",
                "zero_optimization.stage3_max_live_parameters=0"}})) {
    EXPECT_THAT(message, HasSubstr("rank 0 had a gradient of second.experts.3."));
    EXPECT_THAT(message, HasSubstr(" where rank 1 had a gradient of second.experts.1."));
    EXPECT_THAT(message, HasSubstr("name the module that holds them (second.experts) in"));
  }
}

TEST(EngineExpertsTest, AUnitThatComesInPartsIsNamedWithTheLimit) {
  for (const std::string& message : Refusals(
           {.units = kMixtures, .more = {"zero_optimization.stage3_max_live_parameters=1000"}})) {
    EXPECT_THAT(message, HasSubstr("first.experts.0.up"));
    EXPECT_THAT(message, HasSubstr("larger than zero_optimization.stage3_max_live_parameters "
                                   "(1000) allows"));
  }
}

TEST(EngineExpertsTest, AUnitOfWhichARankUsesNothingInItsFirstMicroBatchIsNamed) {
  const auto none_on_rank_1 = [](int64_t step, int64_t micro, int64_t rank, int64_t row,
                                 int64_t mixture) {
    return rank == 1 ? kNoExpert : AnotherOnEachRank(step, micro, rank, row, mixture);
  };
  for (const std::string& message :
       Refusals({.router = none_on_rank_1, .units = {{"first.experts"}, {"second.experts"}}})) {
    EXPECT_THAT(message, HasSubstr("add to the unit a weight that all ranks use"));
  }
}

TEST(EngineExpertsTest, BadLeafModulesAreRefusedInOneLineByValue) {
  const std::pair<const char*, const char*> bad[] = {
      {R"(zero_optimization.leaf_module.names=["first.expert"])",
       "zero_optimization.leaf_module.names: \"first.expert\" is the name of no module"},
      {R"(zero_optimization.leaf_module.classes=["Mixtral"])",
       "zero_optimization.leaf_module.classes: \"Mixtral\" is the class of no module"},
      {R"(zero_optimization.leaf_module.name_suffixes=["mlp"])",
       "zero_optimization.leaf_module.name_suffixes: \"mlp\" is the end of the name of no module"}};
  for (const auto& [override, text] : bad) {
    const testing::TempFolder folder;
    auto job = testing::MakeTestJob(
        {.run_dir = folder.path(),
         .overrides = {"train_batch_size=1", "zero_optimization.stage=3", override}});
    ASSERT_TRUE(job.ok()) << job.status();
    ExpertsModel model(Shape::kPlain);
    const absl::Status status = Engine::Create(**job, model).status();
    EXPECT_EQ(ExitCodeFor(status), kExitUsage) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
  }
}

// Gradients of a mixture are reduced when backward leaves it, not all of them at its end.
TEST(EngineExpertsTest, NoMoreGradientsWaitThanThoseOfOneUnit) {
  const auto results = testing::RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    const Way way{.units = kMixtures};
    DT_ASSIGN_OR_RETURN(auto job, MakeJob(context, folder.path(), way, "world"));
    ExpertsModel model(way.shape);
    EngineOptions options;
    options.units = way.units;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model, options));
    ExpertsSource source{way, context.rank};
    const auto loss = [&](const at::Tensor& batch) {
      return Loss(model.Loss(batch), batch.size(0));
    };
    for (int step = 0; step < 2; ++step) {
      DT_ASSIGN_OR_RETURN(const auto report, engine->Step(source, loss));
      const plan::ShardPlan& shards = *engine->state().shards;
      const int64_t most = 4 * (shards.shard_elements() + 4 * shards.largest_bucket());
      if (report.memory.gradients > most) {
        return absl::InternalError(absl::StrFormat("step %d: %d bytes of gradients; %d at most",
                                                   step, report.memory.gradients, most));
      }
    }
    return absl::OkStatus();
  });
  for (const auto& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

}  // namespace
}  // namespace dtrain::engine_experts_test
