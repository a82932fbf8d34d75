// Frozen weights at ZeRO stage 3: shared out as the others are, and in nothing else different from
// the other stages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <utility>
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
#include "dtrain/model_files.h"
#include "runtime/engine/engine_state.h"
#include "runtime/plan/memory_plan.h"
#include "tests/runtime/chain_for_tests.h"
#include "tests/runtime/job_for_tests.h"

namespace dtrain {
namespace {

using ::testing::HasSubstr;
using testing::IsOpen;
using testing::kLimits;
using testing::MakeChainJob;
using testing::RankContext;
using testing::Tokens;

constexpr int64_t kWidth = 96;
constexpr int64_t kLayers = 4;
constexpr int64_t kRank = 12;

// A chain of frozen layers with low-rank adapters beside them, a frozen table that is read at both
// ends, a small frozen norm, and frozen whole numbers, which no rank shares out.
class Adapted : public torch::nn::Module {
 public:
  struct Layer : torch::nn::Module {
    Layer() {
      base = Frozen(*this, "base", at::randn({kWidth, kWidth}) * 0.1);
      norm = Frozen(*this, "norm", at::rand({kWidth}) + 0.5);
      down = register_parameter("down", at::randn({kRank, kWidth}) * 0.1);
      up = register_parameter("up", at::randn({kWidth, kRank}) * 0.1);
    }
    at::Tensor base, norm, down, up;
  };
  Adapted() {
    table = Frozen(*this, "table", at::randn({101, kWidth}) * 0.1);
    places = Frozen(*this, "places", at::arange(101));
    for (int64_t i = 0; i < kLayers; ++i) {
      layers.push_back(register_module(absl::StrCat("layer", i), std::make_shared<Layer>()));
    }
  }
  // The sum over rows of the loss of predicting the row's own token.
  at::Tensor Loss(const at::Tensor& tokens) {
    at::Tensor h = at::embedding(table, at::index_select(places, 0, tokens));
    for (const auto& layer : layers) {
      const at::Tensor change = h.matmul(layer->down.t()).matmul(layer->up.t());
      h = h + at::tanh(at::linear(h * layer->norm, layer->base) + change);
    }
    return at::cross_entropy_loss(h.matmul(table.t()).to(at::kFloat), tokens, {},
                                  at::Reduction::Sum);
  }
  int64_t FrozenElements() const { return 101 * kWidth + kLayers * (kWidth + 1) * kWidth; }
  at::Tensor table, places;
  std::vector<std::shared_ptr<Layer>> layers;

 private:
  static at::Tensor Frozen(torch::nn::Module& module, const std::string& name, at::Tensor value) {
    return module.register_parameter(name, std::move(value), /*requires_grad=*/false);
  }
};

struct Way {
  int stage = 3;
  std::vector<std::string> more = {};
  std::vector<std::vector<std::string>> units = {};
};

std::vector<double> SumsOf(const Adapted& model) {
  std::vector<double> sums;
  for (const auto& item : model.named_parameters()) {
    const at::Tensor wide = item.value().to(at::kDouble).flatten();
    sums.push_back(
        (wide * (at::arange(wide.numel(), at::kDouble).remainder(97) + 1)).sum().item<double>());
  }
  return sums;
}

// Losses and norms of four steps with an evaluation between, then of all weights sums that weigh
// every element.
absl::Status Train(RankContext& context, const Way& way, std::vector<double>& numbers) {
  at::set_num_threads(1);
  const testing::TempFolder folder;
  DT_ASSIGN_OR_RETURN(
      auto job, MakeChainJob(&context, folder.path(), {.stage = way.stage, .more = way.more}));
  at::manual_seed(static_cast<uint64_t>(3 + context.rank));  // Weights come from rank 0.
  Adapted model;
  EngineOptions options;
  options.units = way.units;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model, options));
  Tokens source{.rank = context.rank, .size = context.size};
  Tokens validation = source;
  const auto loss = [&](const at::Tensor& tokens) {
    return Loss(model.Loss(tokens), tokens.size(0));
  };
  for (int i = 0; i < 4; ++i) {
    DT_ASSIGN_OR_RETURN(const auto report, engine->Step(source, loss));
    numbers.push_back(report.loss);
    numbers.push_back(report.grad_norm);
    if (i == 1) {
      DT_ASSIGN_OR_RETURN(const double evaluated, engine->Evaluate(validation, loss));
      numbers.push_back(evaluated);
    }
  }
  return engine->WithParameters([&] {
    const std::vector<double> sums = SumsOf(model);
    numbers.insert(numbers.end(), sums.begin(), sums.end());
  });
}

// Of rank 0, once it is certain that every rank has the same.
std::vector<double> NumbersOf(int size, const Way& way) {
  auto cluster = testing::Cluster::Start({.size = size}, [&](RankContext& context) -> absl::Status {
    std::vector<double> numbers;
    DT_RETURN_IF_ERROR(Train(context, way, numbers));
    return context.store->Set(absl::StrCat("numbers/", context.rank), DumpJson(Json(numbers)),
                              Deadline::After(absl::Seconds(10)));
  });
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  std::vector<std::string> texts;
  for (int rank = 0; rank < size; ++rank) {
    texts.push_back((*cluster)
                        ->store()
                        .Get(absl::StrCat("numbers/", rank), Deadline::After(absl::Seconds(60)))
                        .value_or("[]"));
    EXPECT_EQ(texts.back(), texts.front()) << "rank " << rank;
  }
  for (const auto& result : (*cluster)->Join()) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
  auto numbers = ParseJson(texts.front(), "numbers")->get<std::vector<double>>();
  EXPECT_EQ(numbers.size(), 9U + 2 + 4 * kLayers);
  return numbers;
}

TEST(EngineFrozenTest, TrainAsAtStageZeroToTheBitWhateverTheLimits) {
  for (const int size : {1, 2, 3}) {
    const std::vector<double> plain = NumbersOf(size, {.stage = 0});
    for (const auto& limits : kLimits) {
      EXPECT_EQ(NumbersOf(size, {.more = {limits, limits + 3}}), plain)
          << size << " ranks, " << limits[0];
    }
  }
}

TEST(EngineFrozenTest, TrainAsAtStageTwoInTwoBytesOffloadedInSmallGroupsAndInUnits) {
  const testing::TempFolder disk;
  const std::vector<Way> ways = {
      {.more = {"zero_optimization.stage3_param_persistence_threshold=1000"}},
      {.more = {"zero_optimization.stage3_param_persistence_threshold=1000",
                "zero_optimization.stage3_model_persistence_threshold=3200"}},
      {.more = {"zero_optimization.offload_param.device=cpu"}},
      {.more = {"zero_optimization.offload_param.device=nvme",
                "zero_optimization.offload_param.nvme_path=" + disk.path()}},
      {.more = {"zero_optimization.zero_hpz_partition_size=2"}},
      {.units = {{"table", "layer0"}, {"layer1", "layer2"}, {"layer3"}}},
      {.units = {{"*.base", "*.norm", "table"}}}};
  for (const char* const precision : {"bf16.enabled=false", "bf16.enabled=true"}) {
    const std::vector<double> plain = NumbersOf(2, {.stage = 2, .more = {precision}});
    for (Way way : ways) {
      way.more.emplace_back(precision);
      EXPECT_EQ(NumbersOf(2, way), plain)
          << precision << ", " << way.more[0] << ", " << way.units.size() << " units";
    }
  }
}

// What travels in blocks is rounded, frozen weights too; what is lent is exact.
TEST(EngineFrozenTest, QuantisedGathersRoundThemOnlyWhereTheyAreComputedWith) {
  const std::vector<double> plain = NumbersOf(2, {.stage = 0});
  const std::vector<double> rounded =
      NumbersOf(2, {.more = {"zero_optimization.zero_quantized_weights=true"}});
  ASSERT_EQ(rounded.size(), plain.size());
  EXPECT_NE(rounded[0], plain[0]);
  EXPECT_NEAR(rounded[0], plain[0], 0.02 * plain[0]);
  // In the order of registration: the module's own, then each layer's base, norm, down, up.
  for (const size_t frozen : {size_t{0}, size_t{1}, size_t{2}, size_t{3}, size_t{6}}) {
    EXPECT_EQ(rounded[9 + frozen], plain[9 + frozen]) << frozen;
  }
}

TEST(EngineFrozenTest, ARankKeepsItsShareAsThePlanSays) {
  const auto results = testing::RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job, MakeChainJob(&context, folder.path(), {}));
    Adapted model;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
    const EngineState& state = engine->state();
    if (state.frozen == nullptr || !model.table.is_alias_of(state.frozen->flat->values()) ||
        !model.layers[2]->norm.is_alias_of(state.frozen->flat->values())) {
      return absl::InternalError("frozen weights are not shared out");
    }
    if (state.flat->frozen().size() != 1 || state.flat->frozen()[0].name != "places") {
      return absl::InternalError("others are whole than those of another type");
    }
    Tokens source{.rank = context.rank, .size = context.size};
    DT_ASSIGN_OR_RETURN(const auto report, engine->Step(source, [&](const at::Tensor& tokens) {
      return Loss(model.Loss(tokens), tokens.size(0));
    }));
    plan::MemoryRequest request;
    request.model.parameters = static_cast<double>(state.flat->layout().parameter_elements());
    request.model.frozen = {{.elements = static_cast<double>(model.FrozenElements())}};
    request.model.frozen_bytes = 8 * 101;
    request.world_size = context.size;
    plan::ReadInto(job->config(), request);
    const double planned = plan::PlanMemory(request).values;
    const double padding = 2 * 4 * 4096;  // A norm block of each layout at most, in fp32.
    const auto weights = static_cast<double>(report.memory.weights);
    const double whole = 4.0 * static_cast<double>(model.FrozenElements());
    if (weights < planned || weights > planned + padding || weights > 0.7 * whole + padding) {
      return absl::InternalError(
          absl::StrCat(weights, " bytes of weights, ", planned, " planned, of ", whole));
    }
    const int64_t optimizer = 2 * 4 * state.shards->shard_elements();
    return report.memory.optimizer == optimizer
               ? absl::OkStatus()
               : absl::InternalError("states of weights that do not train");
  });
  for (const auto& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

// The names of all gathers of weights so far.
std::vector<std::string> Gathers(Job& job) {
  std::vector<std::string> names;
  const auto record = ParseJson(job.group().FlightRecord(), "flight record");
  for (const Json& entry : record->at("entries")) {
    auto name = entry.at("dtrain").at("name").get<std::string>();
    if (absl::StartsWith(name, "weights of bucket ")) {
      names.push_back(std::move(name));
    }
  }
  return names;
}

// The adapters fill a bucket and an eighth of another, both of which their share must hold.
TEST(EngineFrozenTest, NothingIsGatheredTwiceInAStepWhereAllMayBeLive) {
  const auto results = testing::RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(
        auto job, MakeChainJob(&context, folder.path(),
                               {.more = {"zero_optimization.reduce_bucket_size=8192",
                                         "zero_optimization.stage3_max_live_parameters=1000000"}}));
    Adapted model;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
    Tokens source{.rank = context.rank, .size = context.size};
    std::vector<std::string> names;
    std::ptrdiff_t before = 0;
    for (int step = 0; step < 3; ++step) {
      before = static_cast<std::ptrdiff_t>(Gathers(*job).size());
      DT_RETURN_IF_ERROR(engine
                             ->Step(source,
                                    [&](const at::Tensor& tokens) {
                                      return Loss(model.Loss(tokens), tokens.size(0));
                                    })
                             .status());
    }
    names = Gathers(*job);
    names.erase(names.begin(), names.begin() + before);
    const std::set<std::string> distinct(names.begin(), names.end());
    const size_t buckets = engine->state().shards->buckets().size();
    return buckets >= 2 && distinct.size() >= buckets && distinct.size() == names.size()
               ? absl::OkStatus()
               : absl::InternalError(absl::StrJoin(names, ", "));
  });
  for (const auto& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

TEST(EngineFrozenTest, AnotherTypeOnAnotherRankIsRefusedByName) {
  const auto results = testing::RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job,
                        MakeChainJob(&context, folder.path(), {.more = {"bf16.enabled=true"}}));
    Adapted model;
    if (context.rank == 1) {
      model.table.set_data(model.table.to(at::kBFloat16));
    }
    const absl::Status status = Engine::Create(*job, model).status();
    return absl::StrContains(status.message(),
                             "rank 0 has table Float [101, 96], rank 1 has table BFloat16")
               ? absl::OkStatus()
               : absl::InternalError(status.ToString());
  });
  for (const auto& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

// One rank alone.
class EngineFrozenAloneTest : public ::testing::Test {
 protected:
  void Make(Way way, const std::string& folder, uint64_t seed, EngineOptions options = {}) {
    at::set_num_threads(1);
    engine_.reset();
    job_.reset();
    job_ = *MakeChainJob(nullptr, folder, {.stage = way.stage, .more = way.more});
    at::manual_seed(seed);
    model_ = std::make_unique<Adapted>();
    auto engine = Engine::Create(*job_, *model_, std::move(options));
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }
  absl::Status Step() {
    source_.call = engine_->step();
    return engine_
        ->Step(
            source_,
            [this](const at::Tensor& tokens) { return Loss(model_->Loss(tokens), tokens.size(0)); })
        .status();
  }
  std::vector<double> Sums() {
    std::vector<double> sums;
    EXPECT_TRUE(engine_->WithParameters([&] { sums = SumsOf(*model_); }).ok());
    return sums;
  }
  testing::TempFolder folder_;
  std::unique_ptr<Job> job_;
  std::unique_ptr<Adapted> model_;
  std::unique_ptr<Engine> engine_;
  Tokens source_;
};

TEST_F(EngineFrozenAloneTest, CheckpointsGoFromAnyStageToAnyAndBringFrozenWeights) {
  for (const int saved_at : {0, 3}) {
    const testing::TempFolder folder;
    const std::vector<std::string> settings = {"checkpoint.interval=2"};
    Make({.stage = saved_at, .more = settings}, folder.path(), 4);
    std::vector<double> expected;
    {
      auto checkpoints = *Checkpointer::Open(*job_);
      checkpoints->Track("engine", *engine_);
      for (int i = 0; i < 2; ++i) {
        ASSERT_TRUE(Step().ok());
      }
      ASSERT_TRUE(checkpoints->MaybeSave(2).ok());
      ASSERT_TRUE(Step().ok());
      expected = Sums();
    }
    for (const int stage : {0, 2, 3}) {
      SCOPED_TRACE(absl::StrCat("from stage ", saved_at, " to ", stage));
      Make({.stage = stage, .more = settings}, folder.path(), 5);  // Other weights.
      auto checkpoints = *Checkpointer::Open(*job_);
      checkpoints->Track("engine", *engine_);
      ASSERT_TRUE(checkpoints->RestoreLatest().ok());
      ASSERT_EQ(engine_->step(), 2);
      ASSERT_TRUE(Step().ok());
      EXPECT_EQ(Sums(), expected);
    }
  }
}

TEST_F(EngineFrozenAloneTest, AProgramThatBringsThemStoresNone) {
  for (const bool store : {true, false}) {
    EngineOptions options;
    options.store_frozen = store;
    Make({}, folder_.path(), 4, std::move(options));
    const std::string folder = absl::StrCat(folder_.path(), "/export-", store);
    ASSERT_TRUE(ExportModel(*job_, *engine_, folder).ok());
    const auto files = ModelFiles::Open(folder);
    ASSERT_TRUE(files.ok()) << files.status();
    EXPECT_EQ((*files)->names().size(), store ? 2U + 4 * kLayers : 2U * kLayers);
    EXPECT_EQ((*files)->Describe("layer1.base").ok(), store);
    EXPECT_TRUE((*files)->Describe("layer1.up").ok());
  }
}

TEST(EngineFrozenTest, AnExportHoldsWholeWeights) {
  const testing::TempFolder folder;
  const std::string exported = folder.path() + "/model";
  const auto results =
      testing::RunRanks({.size = 2}, [&exported](RankContext& context) -> absl::Status {
        at::set_num_threads(1);
        const testing::TempFolder run;
        DT_ASSIGN_OR_RETURN(auto job, MakeChainJob(&context, run.path(), {}));
        at::manual_seed(static_cast<uint64_t>(4 + context.rank));
        Adapted model;
        DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
        return ExportModel(*job, *engine, exported);
      });
  for (const auto& result : results) {
    ASSERT_TRUE(result.status.ok()) << result.status;
  }
  at::manual_seed(4);
  const Adapted original;
  const auto files = ModelFiles::Open(exported);
  ASSERT_TRUE(files.ok()) << files.status();
  for (const auto& item : original.named_parameters()) {
    at::Tensor read = at::empty_like(item.value());
    ASSERT_TRUE((*files)->Read(item.key(), read).ok()) << item.key();
    EXPECT_TRUE(at::equal(read, item.value())) << item.key();
  }
}

TEST_F(EngineFrozenAloneTest, AnUpdateLeavesWhatIsGatheredAsItIs) {
  Make({}, folder_.path(), 4);
  EXPECT_FALSE(IsOpen(model_->layers[0]->base));
  ASSERT_TRUE(Step().ok());
  EXPECT_TRUE(IsOpen(model_->layers[0]->base));
  EXPECT_FALSE(IsOpen(model_->layers[0]->up)) << "it has changed";
}

TEST_F(EngineFrozenAloneTest, StayAsTheyAreWhenTheEngineIsRefused) {
  class Greedy : public Optimizer {
   public:
    std::string name() const override { return "greedy"; }
    std::vector<std::string> states() const override { return {}; }
    void Update(const ParameterPart& /*part*/) const override {}
  };
  job_ = *MakeChainJob(nullptr, folder_.path(), {.more = {"optimizer.type=sgd"}});
  Adapted model;
  const auto* const data = model.table.const_data_ptr();
  const at::Tensor before = model.table.clone();
  EngineOptions options;
  options.optimizer = std::make_shared<Greedy>();
  const auto refused = Engine::Create(*job_, model, std::move(options));
  EXPECT_THAT(refused.status().message(), HasSubstr("remove the key"));
  EXPECT_EQ(model.table.const_data_ptr(), data);
  EXPECT_TRUE(at::equal(model.table, before));
}

TEST_F(EngineFrozenAloneTest, AWriteThatWouldBeLostIsRefusedByName) {
  Make({}, folder_.path(), 4);
  ASSERT_TRUE(Step().ok());
  {
    const at::NoGradGuard no_grad;
    model_->layers[1]->base.mul_(2);
  }
  const absl::Status refused = Step();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("parameter layer1.base was written to by the program"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("register it as a buffer"));
}

TEST_F(EngineFrozenAloneTest, AStepThatFailsIsTakenAgain) {
  Make({}, folder_.path(), 4);
  Tokens source;
  const auto failed = engine_->Step(source, [this](const at::Tensor& tokens) -> Loss {
    model_->Loss(tokens);
    throw std::runtime_error("a bad sample");
  });
  EXPECT_THAT(std::string(failed.status().message()), HasSubstr("a bad sample"));
  EXPECT_FALSE(IsOpen(model_->layers[0]->base));
  EXPECT_TRUE(Step().ok());
}

}  // namespace
}  // namespace dtrain
