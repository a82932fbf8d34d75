// Units that a program names (EngineOptions::units): what ZeRO stage 3 gathers and frees together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json.h"
#include "base/status.h"
#include "dtrain/checkpointer.h"
#include "dtrain/engine.h"
#include "runtime/optimizer/engine_state.h"
#include "tests/runtime/testing/chain_for_tests.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::engine_units_test {
namespace {

using testing::Chain;
using testing::ChainWay;
using ::testing::ElementsAre;
using testing::ExpectSameNumbers;
using ::testing::HasSubstr;
using testing::IsOpen;
using testing::kLimits;
using testing::MakeChainJob;
using testing::RankContext;
using Units = std::vector<std::vector<std::string>>;

// Units of a chain: both ends, a pair of layers and three layers. The others are left to dtrain.
const Units& ChainUnits() {
  static const auto* const units =
      new Units{{"table", "norm"}, {"*0", "*1"}, {"weight3", "bias3", "*4", "*5"}, {"unused"}};
  return *units;
}

TEST(EngineUnitsTest, TrainToTheSameBitsAsWithoutWhateverTheLimits) {
  for (const int size : {1, 2, 3}) {
    std::vector<ChainWay> ways = {{.stage = 0}};
    for (const auto& limits : kLimits) {
      ways.push_back({.more = {limits, limits + 3}, .units = ChainUnits()});
    }
    ExpectSameNumbers(size, ways);
  }
}

TEST(EngineUnitsTest, TrainToTheSameBitsInTwoBytesOffloadedQuantisedAndInSmallGroups) {
  const std::vector<std::vector<std::string>> ways = {
      {"bf16.enabled=true"},
      {"zero_optimization.offload_param.device=cpu"},
      {"zero_optimization.zero_quantized_weights=true",
       "zero_optimization.zero_quantized_gradients=true"},
      {"zero_optimization.zero_hpz_partition_size=2"}};
  for (const auto& more : ways) {
    ExpectSameNumbers(2, {{.more = more}, {.more = more, .units = ChainUnits()}});
  }
}

// The collectives on buckets that this rank has called: names and elements, in order.
std::vector<std::string> BucketCalls(Job& job) {
  std::vector<std::string> calls;
  const auto record = ParseJson(job.group().FlightRecord(), "flight record");
  for (const Json& entry : record->at("entries")) {
    const auto name = entry.at("dtrain").at("name").get<std::string>();
    if (absl::StrContains(name, "bucket ")) {
      calls.push_back(absl::StrCat(name, " ", DumpJson(entry.at("input_sizes"))));
    }
  }
  return calls;
}

// The bucket calls of a first step.
absl::StatusOr<std::vector<std::string>> BucketCallsOfAStep(Job& job, const Units& units) {
  const auto before = static_cast<std::ptrdiff_t>(BucketCalls(job).size());
  at::manual_seed(3);
  Chain model;
  EngineOptions options;
  options.units = units;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(job, model, options));
  testing::Tokens source{.rank = job.rank(), .size = job.world_size()};
  DT_RETURN_IF_ERROR(TakeStep(*engine, model, source).status());
  DT_RETURN_IF_ERROR(engine->WithParameters([] {}));
  std::vector<std::string> calls = BucketCalls(job);
  calls.erase(calls.begin(), calls.begin() + before);
  return calls;
}

TEST(EngineUnitsTest, AreUsedForNothingBelowStageThree) {
  const std::vector<ChainWay> ways = {{.stage = 0}, {.stage = 1}, {.stage = 2}, {.stage = 3}};
  for (const ChainWay& way : ways) {
    const auto results = testing::RunRanks({.size = 2}, [&](RankContext& context) -> absl::Status {
      at::set_num_threads(1);
      const testing::TempFolder folder;
      DT_ASSIGN_OR_RETURN(auto job, MakeChainJob(&context, folder.path(), way));
      DT_ASSIGN_OR_RETURN(const auto plain, BucketCallsOfAStep(*job, {}));
      DT_ASSIGN_OR_RETURN(const auto with, BucketCallsOfAStep(*job, ChainUnits()));
      return !plain.empty() && (with == plain) == (way.stage < 3)
                 ? absl::OkStatus()
                 : absl::InternalError(
                       absl::StrCat(absl::StrJoin(plain, ", "), "; ", absl::StrJoin(with, ", ")));
    });
    for (const auto& result : results) {
      EXPECT_TRUE(result.status.ok()) << "stage " << way.stage << ": " << result.status;
    }
  }
}

constexpr int64_t kBlock = 12288;  // Elements: three norm blocks, so that borders are exact.

// Its parameters are in modules of its own.
class Blocks : public torch::nn::Module {
 public:
  struct Block : torch::nn::Module {
    Block() {
      wide = register_parameter("wide", at::randn({64, 128}) * 0.1);
      square = register_parameter("square", at::randn({64, 64}) * 0.1);
    }
    at::Tensor wide, square;
  };
  Blocks() {
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(register_module(absl::StrCat("block", i), std::make_shared<Block>()));
    }
  }
  at::Tensor Loss(const at::Tensor& x) {
    at::Tensor h = x;
    for (const auto& block : blocks) {
      h = h + at::tanh(h.matmul(block->square)).matmul(block->wide).narrow(1, 0, 64);
    }
    return h.square().sum();
  }
  std::vector<std::shared_ptr<Block>> blocks;
};

struct Rows {
  int64_t calls = 0;
  absl::StatusOr<at::Tensor> Next() {
    return at::sin(at::arange(128, at::kFloat).view({2, 64}) + static_cast<double>(++calls));
  }
};

// One rank alone, which shows all of its gathers.
class EngineUnitsAloneTest : public ::testing::Test {
 protected:
  void Make(const Units& units, const std::vector<std::string>& more = {}, int stage = 3) {
    at::set_num_threads(1);
    engine_.reset();
    job_ = *MakeChainJob(nullptr, folder_.path(), {.stage = stage, .more = more});
    at::manual_seed(4);
    model_ = std::make_unique<Blocks>();
    EngineOptions options;
    options.units = units;
    auto engine = Engine::Create(*job_, *model_, options);
    status_ = engine.status();
    if (engine.ok()) {
      engine_ = *std::move(engine);
    }
  }
  // Elements of gathered weights that have memory after `weight` was read.
  int64_t LiveAfter(const at::Tensor& weight) {
    const at::NoGradGuard no_grad;
    static_cast<void>(weight.sum());
    return engine_->state().live->bytes() / 4;
  }
  absl::Status Step() {
    Rows rows{engine_->step()};
    return engine_->Step(rows, [&](const at::Tensor& x) { return Loss(model_->Loss(x), 2); })
        .status();
  }
  testing::TempFolder folder_;
  std::unique_ptr<Job> job_;
  std::unique_ptr<Blocks> model_;
  std::unique_ptr<Engine> engine_;
  absl::Status status_;
};

constexpr char kOnDemand[] = "zero_optimization.stage3_prefetch_bucket_size=0";

TEST_F(EngineUnitsAloneTest, AUnitIsGatheredWithTheFirstOfItsParametersThatIsRead) {
  Make({}, {kOnDemand});
  ASSERT_TRUE(status_.ok()) << status_;
  EXPECT_EQ(LiveAfter(model_->blocks[1]->square), 4096) << "a bucket of reduce_bucket_size";
  Make({{"block0"}, {"block1"}, {"block2"}}, {kOnDemand});
  ASSERT_TRUE(status_.ok()) << status_;
  EXPECT_EQ(LiveAfter(model_->blocks[1]->square), kBlock);
  EXPECT_EQ(LiveAfter(model_->blocks[1]->wide), kBlock) << "it is there";
  EXPECT_EQ(LiveAfter(model_->blocks[0]->wide), 2 * kBlock);
  EXPECT_EQ(LiveAfter(model_->blocks[2]->square), 3 * kBlock);
  Make({{"block0", "block1"}}, {kOnDemand});
  ASSERT_TRUE(status_.ok()) << status_;
  EXPECT_EQ(LiveAfter(model_->blocks[0]->square), 2 * kBlock);
  EXPECT_EQ(LiveAfter(model_->blocks[2]->square), 2 * kBlock + 4096) << "in no unit: automatic";
}

TEST_F(EngineUnitsAloneTest, AUnitIsFreedAsOne) {
  Make({{"block0"}, {"block1"}, {"block2"}},
       {kOnDemand, absl::StrCat("zero_optimization.stage3_max_live_parameters=", kBlock)});
  ASSERT_TRUE(status_.ok()) << status_;
  for (const auto& block : model_->blocks) {
    EXPECT_EQ(LiveAfter(block->wide), kBlock);
    EXPECT_EQ(LiveAfter(block->square), kBlock);
  }
}

TEST_F(EngineUnitsAloneTest, AUnitThatMayNotBeLiveAsAWholeIsCut) {
  Make({{"block0"}, {"block1"}, {"block2"}},
       {kOnDemand, "zero_optimization.stage3_max_live_parameters=9000"});
  ASSERT_TRUE(status_.ok()) << status_;
  EXPECT_EQ(engine_->state().shards->largest_bucket(), 8192);
  EXPECT_EQ(LiveAfter(model_->blocks[1]->square), 8192);
  EXPECT_TRUE(Step().ok());
}

TEST_F(EngineUnitsAloneTest, TheNextUnitIsGatheredAheadHoweverLarge) {
  for (const int prefetch : {0, 1}) {
    Make({{"block0"}, {"block1"}, {"block2"}},
         {absl::StrCat("zero_optimization.stage3_prefetch_bucket_size=", prefetch)});
    ASSERT_TRUE(status_.ok()) << status_;
    ASSERT_TRUE(Step().ok());  // Recorded.
    std::vector<bool> open;
    Rows rows{engine_->step()};
    const auto report = engine_->Step(rows, [&](const at::Tensor& x) {
      LiveAfter(model_->blocks[0]->square);
      for (const auto& block : model_->blocks) {
        open.push_back(IsOpen(block->wide));
      }
      return Loss(model_->Loss(x), 2);
    });
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_THAT(open, ElementsAre(true, prefetch == 1, false));
  }
}

TEST_F(EngineUnitsAloneTest, BadUnitsAreRefusedAtEveryStageInOneLine) {
  for (const int stage : {0, 2, 3}) {
    Make({{"block0"}, {"block7"}}, {}, stage);
    EXPECT_EQ(ExitCodeFor(status_), kExitUsage) << status_;
    EXPECT_THAT(std::string(status_.message()),
                HasSubstr("EngineOptions::units[1]: \"block7\" names no module"));
    EXPECT_THAT(std::string(status_.message()), HasSubstr("there are block0, block1, block2"));
    Make({{"block0"}, {"block0.wide"}}, {}, stage);
    EXPECT_THAT(std::string(status_.message()), HasSubstr("parameter block0.wide is in"));
    Make({{"block0", "block2"}}, {}, stage);
    EXPECT_THAT(std::string(status_.message()), HasSubstr("block1.square is registered"));
    EXPECT_EQ(status_.message().find('\n'), std::string::npos);
  }
}

TEST(EngineUnitsTest, RanksWithOtherUnitsAreToldSo) {
  const auto results = testing::RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job, MakeChainJob(&context, folder.path(), {}));
    Chain model;
    EngineOptions options;
    options.units = context.rank == 0 ? Units{{"table"}} : Units{{"unused"}};
    return Engine::Create(*job, model, options).status();
  });
  for (const auto& result : results) {
    EXPECT_THAT(std::string(result.status.message()),
                HasSubstr("EngineOptions::units of rank 1 are not those of rank 0"));
  }
}

// A run of four steps that saves the second, or goes on from there; its weights.
std::vector<double> TrainAndSave(const std::string& run_dir, const Units& units, bool resume) {
  auto job = *MakeChainJob(nullptr, run_dir, {.more = {"checkpoint.interval=2"}});
  at::manual_seed(resume ? 8 : 4);
  Blocks model;
  EngineOptions options;
  options.units = units;
  auto engine = *Engine::Create(*job, model, options);
  auto checkpoints = *Checkpointer::Open(*job);
  checkpoints->Track("engine", *engine);
  if (resume) {
    EXPECT_TRUE(checkpoints->RestoreLatest().ok());
    EXPECT_EQ(engine->step(), 2);
  }
  Rows rows{engine->step()};
  while (engine->step() < 4) {
    const auto report =
        engine->Step(rows, [&](const at::Tensor& x) { return Loss(model.Loss(x), 2); });
    EXPECT_TRUE(report.ok()) << report.status();
    if (!resume && engine->step() == 2) {
      EXPECT_TRUE(checkpoints->MaybeSave(2).ok());
    }
  }
  std::vector<double> sums;
  EXPECT_TRUE(engine
                  ->WithParameters([&] {
                    for (const at::Tensor& parameter : model.parameters()) {
                      sums.push_back(parameter.to(at::kDouble).sum().item<double>());
                    }
                  })
                  .ok());
  return sums;
}

TEST(EngineUnitsTest, ACheckpointIsReadWithAnyUnits) {
  at::set_num_threads(1);
  const testing::TempFolder folder;
  const std::vector<double> whole =
      TrainAndSave(folder.path(), {{"block0"}, {"block1"}, {"block2"}}, /*resume=*/false);
  ASSERT_EQ(whole.size(), 6U);
  const std::vector<Units> others = {{}, {{"block1", "block2"}}, {{"*.wide", "block*"}}};
  for (const Units& units : others) {
    EXPECT_EQ(TrainAndSave(folder.path(), units, /*resume=*/true), whole) << units.size();
  }
}

}  // namespace
}  // namespace dtrain::engine_units_test
