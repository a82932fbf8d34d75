// Frozen weights at ZeRO stage 3: shared out as the others are, and in nothing else different from
// the other stages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/status.h"
#include "dtrain/checkpointer.h"
#include "dtrain/engine.h"
#include "dtrain/model_files.h"
#include "runtime/optimizer/engine_state.h"
#include "runtime/plan/memory/memory_plan.h"
#include "tests/runtime/testing/adapted_for_tests.h"
#include "tests/runtime/testing/chain_for_tests.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::engine_frozen_test {
namespace {

using testing::Adapted;
using ::testing::HasSubstr;
using testing::IsOpen;
using testing::kLimits;
using testing::MakeChainJob;
using testing::RankContext;
using testing::Tokens;

constexpr int64_t kLayers = Adapted::kLayers;

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

// The numbers of rank 0, after a check that every rank has the same.
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
    texts.push_back((*cluster)->Result(absl::StrCat("numbers/", rank)).value_or("[]"));
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

// Weights that travel in blocks are rounded, frozen ones too; weights that WithParameters lends to
// the program are exact.
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
    DT_ASSIGN_OR_RETURN(const auto report, TakeStep(*engine, model, source));
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

// Exports a model whose adapters are merged in; an error when much of what is frozen was gathered
// while they were read.
absl::Status ExportMerged(RankContext& context, const std::string& folder,
                          const std::vector<std::string>& more) {
  at::set_num_threads(1);
  const testing::TempFolder run;
  DT_ASSIGN_OR_RETURN(auto job, MakeChainJob(&context, run.path(), {.more = more}));
  at::manual_seed(static_cast<uint64_t>(4 + context.rank));
  Adapted model;
  EngineOptions engine_options;
  engine_options.store_frozen = false;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model, engine_options));
  const EngineState& state = engine->state();
  int64_t live = 0;
  ExportOptions options;
  options.with_frozen = true;
  options.public_name = [](const std::string& name) {
    const bool adapter = name.ends_with(".down") || name.ends_with(".up");
    return adapter ? std::string() : "model." + name;
  };
  options.change = [&](const std::string& name) {
    for (int64_t i = 0; i < kLayers; ++i) {
      if (name == absl::StrCat("layer", i, ".base")) {
        const Adapted::Layer& layer = *model.layers[static_cast<size_t>(i)];
        const at::Tensor change = layer.up.matmul(layer.down);
        live = std::max(live, state.frozen->live->bytes());
        return change;
      }
    }
    return at::Tensor();
  };
  DT_RETURN_IF_ERROR(ExportModel(*job, *engine, folder, options));
  return live > 0 && live < 3 * model.FrozenElements()  // Elements have 4 bytes.
             ? absl::OkStatus()
             : absl::InternalError(absl::StrCat(live, " bytes of frozen weights at a time"));
}

TEST(EngineFrozenTest, AMergedExportTakesOneWeightAtATimeAndExactAdapters) {
  at::set_num_threads(1);
  const testing::TempFolder folder;
  for (const char* const quantized : {"false", "true"}) {
    const std::string exported = absl::StrCat(folder.path(), "/", quantized);
    const auto results = testing::RunRanks({.size = 2}, [&](RankContext& context) {
      return ExportMerged(context, exported,
                          {"zero_optimization.stage3_max_live_parameters=0",
                           absl::StrCat("zero_optimization.zero_quantized_weights=", quantized)});
    });
    for (const auto& result : results) {
      ASSERT_TRUE(result.status.ok()) << result.status;
    }
    at::manual_seed(4);
    const Adapted original;
    const auto files = ModelFiles::Open(exported);
    ASSERT_TRUE(files.ok()) << files.status();
    EXPECT_EQ((*files)->names().size(), 2U + 2 * kLayers) << "no adapter";
    for (int64_t i = 0; i < kLayers; ++i) {
      const Adapted::Layer& layer = *original.layers[static_cast<size_t>(i)];
      const auto read = [&](const char* name, const at::Tensor& like) {
        at::Tensor values = at::empty_like(like);
        EXPECT_TRUE((*files)->Read(absl::StrCat("model.layer", i, ".", name), values).ok()) << name;
        return values;
      };
      EXPECT_TRUE(at::equal(read("norm", layer.norm), layer.norm));
      // Values that are rounded to int8 are off by 1e-4 and more. The tolerance is for products,
      // which may sum in another order when their matrices lie at other addresses.
      const at::Tensor merged = layer.base + layer.up.detach().matmul(layer.down.detach());
      EXPECT_TRUE(at::allclose(read("base", layer.base), merged, /*rtol=*/0, /*atol=*/1e-6))
          << i << ", quantised " << quantized;
    }
  }
}

// Three exports of two ranks: with weights as changes, with a change that one rank alone cannot
// give, and again.
absl::Status ExportSums(RankContext& context, const std::string& folder) {
  at::set_num_threads(1);
  const testing::TempFolder run;
  DT_ASSIGN_OR_RETURN(auto job,
                      MakeChainJob(&context, run.path(),
                                   {.more = {"zero_optimization.stage3_max_live_parameters=0"}}));
  at::manual_seed(4);
  Adapted model;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
  bool throws = false;
  ExportOptions options;
  options.with_frozen = true;
  options.change = [&](const std::string& name) {
    if (throws && name == "layer1.base") {
      throw std::runtime_error("no memory, on purpose");
    }
    return name == "layer0.base" ? model.layers[1]->base.t() : at::Tensor();
  };
  DT_RETURN_IF_ERROR(ExportModel(*job, *engine, absl::StrCat(folder, "/first"), options));
  throws = context.rank == 1;
  const absl::Status thrown = ExportModel(*job, *engine, absl::StrCat(folder, "/second"), options);
  if (throws && !absl::StrContains(thrown.message(), "layer1.base: ")) {
    return absl::InternalError(absl::StrCat("not told: ", thrown.message()));
  }
  throws = false;
  return ExportModel(*job, *engine, absl::StrCat(folder, "/third"), options);
}

TEST(EngineFrozenTest, AChangeMayBeAWeightAndOneThatARankCannotGiveLeavesTheOthersWhole) {
  at::set_num_threads(1);
  const testing::TempFolder folder;
  const auto results = testing::RunRanks(
      {.size = 2}, [&](RankContext& context) { return ExportSums(context, folder.path()); });
  for (const auto& result : results) {
    ASSERT_TRUE(result.status.ok()) << result.status;
  }
  at::manual_seed(4);
  const Adapted original;
  for (const char* const name : {"/first", "/third"}) {
    const auto files = ModelFiles::Open(folder.path() + name);
    ASSERT_TRUE(files.ok()) << files.status();
    at::Tensor read = at::empty_like(original.layers[0]->base);
    ASSERT_TRUE((*files)->Read("layer0.base", read).ok());
    EXPECT_TRUE(at::equal(read, original.layers[0]->base + original.layers[1]->base.t()));
  }
}

TEST_F(EngineFrozenAloneTest, AChangeThatDoesNotFitOrThrowsEndsTheExportByTheWeightsName) {
  Make({}, folder_.path(), 4);
  const std::string folder = folder_.path() + "/merged";
  ExportOptions options;
  options.change = [](const std::string& name) {
    return name == "layer1.base" ? at::zeros({2, 3}) : at::Tensor();
  };
  EXPECT_THAT(std::string(ExportModel(*job_, *engine_, folder, options).message()),
              HasSubstr("gave [2, 3] for layer1.base, which is [96, 96]"));
  options.change = [](const std::string&) { return at::zeros({2}).matmul(at::zeros({3})); };
  EXPECT_THAT(std::string(ExportModel(*job_, *engine_, folder, options).message()),
              HasSubstr("in ExportOptions::change"));
  options.change = nullptr;
  EXPECT_TRUE(ExportModel(*job_, *engine_, folder, options).ok());
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
}  // namespace dtrain::engine_frozen_test
