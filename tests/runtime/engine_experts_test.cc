// Mixtures of experts of which each rank's data uses another one: ranks read and differentiate
// other weights. What they end with is that of a plain LibTorch loop over the whole global batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "dtrain/recompute.h"
#include "runtime/engine/engine_state.h"
#include "runtime/shard/live_parameters.h"
#include "tests/runtime/job_for_tests.h"

namespace dtrain::engine_experts_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::RankContext;
using Units = std::vector<std::vector<std::string>>;

constexpr int64_t kWidth = 64;
constexpr int64_t kExperts = 4;
constexpr int64_t kRows = 4;  // Of a micro-batch of a rank.
constexpr int kSteps = 4;
constexpr double kRate = 0.02;
constexpr int64_t kNoExpert = -1;

// 16,448 elements: no border between two is one of buckets.
struct Expert : torch::nn::Module {
  Expert() {
    up = register_parameter("up", at::randn({kWidth, 2 * kWidth}) * 0.1);
    down = register_parameter("down", at::randn({2 * kWidth, kWidth}) * 0.1);
    bias = register_parameter("bias", at::randn({kWidth}) * 0.1);
  }
  at::Tensor forward(const at::Tensor& x) { return at::tanh(x.matmul(up)).matmul(down) + bias; }
  at::Tensor up, down, bias;
};

struct Experts : torch::nn::Module {
  Experts() {
    for (int64_t i = 0; i < kExperts; ++i) {
      all.push_back(register_module(std::to_string(i), std::make_shared<Expert>()));
    }
  }
  std::vector<std::shared_ptr<Expert>> all;
};

struct Mixture : torch::nn::Module {
  Mixture() {
    gate = register_parameter("gate", at::randn({kWidth, 1}) * 0.1);
    experts = register_module("experts", std::make_shared<Experts>());
  }
  // `choice` [rows]: the expert of each row.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& choice) {
    const at::Tensor weight = at::sigmoid(x.matmul(gate));
    at::Tensor out = x * weight;
    for (int64_t i = 0; i < kExperts; ++i) {
      const at::Tensor rows = at::nonzero(choice == i).view({-1});
      if (rows.numel() > 0) {
        const at::Tensor part =
            experts->all[static_cast<size_t>(i)]->forward(x.index_select(0, rows));
        out = out.index_add(0, rows, part * weight.index_select(0, rows));
      }
    }
    return out;
  }
  at::Tensor gate;
  std::shared_ptr<Experts> experts;
};

enum class Shape { kPlain, kTied, kRecomputed, kFrozenExperts, kFrozenRest, kMixtureAtBothEnds };

class Model : public torch::nn::Module {
 public:
  explicit Model(Shape shape) : shape_(shape) {
    const auto square = [] { return at::randn({kWidth, kWidth}) * 0.1; };
    in_ = register_parameter("in", square());
    first_ = register_module("first", std::make_shared<Mixture>());
    middle_ = register_parameter("middle", at::randn({kWidth, 3 * kWidth}) * 0.1);
    second_ = shape == Shape::kTied ? first_ : std::make_shared<Mixture>();
    register_module("second", second_);
    out_ = register_parameter("out", square());
    for (auto& parameter : named_parameters()) {
      const bool of_expert = parameter.key().find("experts") != std::string::npos;
      if ((shape == Shape::kFrozenExperts && of_expert) ||
          (shape == Shape::kFrozenRest && !of_expert)) {
        parameter.value().set_requires_grad(false);
      }
    }
  }

  // The sum over rows; each is its values, and the experts of both mixtures.
  at::Tensor Loss(const at::Tensor& batch) {
    const at::Tensor x = batch.narrow(1, 0, kWidth).to(middle_.scalar_type());
    const auto choice = [&](int64_t mixture) {
      return batch.select(1, kWidth + mixture).to(at::kLong);
    };
    if (shape_ == Shape::kMixtureAtBothEnds) {
      return Second(First(x, choice(0)), choice(1)).square().sum();
    }
    at::Tensor h = at::tanh(x.matmul(in_));
    if (shape_ == Shape::kRecomputed) {
      h = Recompute([this, to = choice(0)](const at::Tensor& y) { return First(y, to); }, h);
      h = Recompute([this, to = choice(1)](const at::Tensor& y) { return Second(y, to); }, h);
    } else {
      h = Second(First(h, choice(0)), choice(1));
    }
    return at::tanh(h.matmul(out_)).square().sum();
  }

 private:
  at::Tensor First(const at::Tensor& h, const at::Tensor& choice) {
    const at::Tensor mixed = h + first_->forward(h, choice);
    return at::tanh(mixed.matmul(middle_).narrow(1, 0, kWidth));
  }
  at::Tensor Second(const at::Tensor& h, const at::Tensor& choice) {
    return h + second_->forward(h, choice);
  }

  const Shape shape_;
  at::Tensor in_, middle_, out_;
  std::shared_ptr<Mixture> first_, second_;
};

// Which expert of a mixture a row takes.
using Router =
    std::function<int64_t(int64_t step, int64_t micro, int64_t rank, int64_t row, int64_t mixture)>;

// Each rank another one, in another order from step to step.
int64_t AnotherOnEachRank(int64_t step, int64_t micro, int64_t rank, int64_t /*row*/,
                          int64_t mixture) {
  return (rank * (1 + step % 3) + micro + step + mixture) % kExperts;
}
// One rank uses many, the others one; never the same number of them.
int64_t MoreOnSomeRanks(int64_t step, int64_t micro, int64_t rank, int64_t row, int64_t mixture) {
  return rank == step % 2 ? (row + micro + mixture) % kExperts : (rank + step) % kExperts;
}
// From the second step on a rank uses none at all, of a mixture or of both.
int64_t NoneOnSomeRanks(int64_t step, int64_t micro, int64_t rank, int64_t row, int64_t mixture) {
  const bool none = step > 0 && (rank + step + (step == 2 ? 0 : mixture)) % 2 == 0;
  return none ? kNoExpert : AnotherOnEachRank(step, micro, rank, row, mixture);
}

struct Way {
  int size = 2;
  int stage = 3;
  int accumulation = 1;
  Shape shape = Shape::kPlain;
  Router router = AnotherOnEachRank;
  Units units = {};
  std::vector<std::string> more = {};
};

// The micro-batch of a rank.
at::Tensor BatchOf(const Way& way, int64_t step, int64_t micro, int64_t rank) {
  const int64_t place = (step * way.accumulation + micro) * way.size + rank;
  const at::Tensor values =
      at::sin(at::arange(kRows * kWidth, at::kFloat).view({kRows, kWidth}) * 0.37 +
              static_cast<double>(place));
  at::Tensor choices = at::empty({kRows, 2});
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t mixture = 0; mixture < 2; ++mixture) {
      choices[row][mixture] = way.router(step, micro, rank, row, mixture);
    }
  }
  return at::cat({values, choices}, 1);
}

struct Source {
  const Way& way;
  int64_t rank = 0;
  int64_t call = 0;
  absl::StatusOr<at::Tensor> Next() {
    const int64_t now = call++;
    return BatchOf(way, now / way.accumulation, now % way.accumulation, rank);
  }
  void Restart() { call = 0; }
};

// The whole global batch of a step.
at::Tensor GlobalBatch(const Way& way, int64_t step) {
  std::vector<at::Tensor> parts;
  for (int64_t micro = 0; micro < way.accumulation; ++micro) {
    for (int64_t rank = 0; rank < way.size; ++rank) {
      parts.push_back(BatchOf(way, step, micro, rank));
    }
  }
  return at::cat(parts);
}

struct Outcome {
  std::vector<double> losses;  // Of the steps, and of an evaluation after the second.
  std::vector<at::Tensor> weights;
};

// Gradient descent in plain LibTorch.
Outcome Expected(const Way& way) {
  at::manual_seed(5);
  Model model(way.shape == Shape::kRecomputed ? Shape::kPlain : way.shape);
  Outcome outcome;
  for (int64_t step = 0; step < kSteps; ++step) {
    const at::Tensor batch = GlobalBatch(way, step);
    const at::Tensor loss = model.Loss(batch) / static_cast<double>(batch.size(0));
    loss.backward();
    outcome.losses.push_back(loss.item<double>());
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : model.parameters()) {
      if (parameter.grad().defined()) {
        parameter.sub_(parameter.grad(), kRate);
        parameter.mutable_grad().reset();
      }
    }
    if (step == 1) {
      const at::Tensor seen = at::cat({GlobalBatch(way, 0), GlobalBatch(way, 1)});
      outcome.losses.push_back(model.Loss(seen).item<double>() / static_cast<double>(seen.size(0)));
    }
  }
  outcome.weights = model.parameters();
  return outcome;
}

absl::StatusOr<std::unique_ptr<Job>> MakeJob(RankContext& context, const std::string& folder,
                                             const Way& way, const std::string& group) {
  std::vector<std::string> overrides = {
      "train_micro_batch_size_per_gpu=1",
      "optimizer.type=SGD",
      absl::StrCat("optimizer.params.lr=", kRate),
      "gradient_clipping=0",
      "eval_batches=2",
      absl::StrCat("gradient_accumulation_steps=", way.accumulation),
      absl::StrCat("zero_optimization.stage=", way.stage),
      "zero_optimization.reduce_bucket_size=5000",
      "zero_optimization.stage3_param_persistence_threshold=0"};
  overrides.insert(overrides.end(), way.more.begin(), way.more.end());
  return testing::MakeTestJob(
      {.run_dir = folder, .overrides = overrides, .rank = &context, .group = group});
}

absl::StatusOr<Outcome> Train(RankContext& context, const Way& way, const std::string& group) {
  const testing::TempFolder folder;
  DT_ASSIGN_OR_RETURN(auto job, MakeJob(context, folder.path(), way, group));
  at::manual_seed(5);
  Model model(way.shape);
  EngineOptions options;
  options.units = way.units;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model, options));
  Source source{way, context.rank};
  Source validation{way, context.rank};
  const auto loss = [&](const at::Tensor& batch) { return Loss(model.Loss(batch), batch.size(0)); };
  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    DT_ASSIGN_OR_RETURN(const auto report, engine->Step(source, loss));
    outcome.losses.push_back(report.loss);
    if (step == 1) {
      DT_ASSIGN_OR_RETURN(const double evaluated, engine->Evaluate(validation, loss));
      outcome.losses.push_back(evaluated);
    }
  }
  DT_RETURN_IF_ERROR(engine->WithParameters([&] {
    for (const at::Tensor& parameter : model.parameters()) {
      outcome.weights.push_back(parameter.detach().to(at::kFloat).clone());
    }
  }));
  return outcome;
}

// Sums of other orders in fp32, over some thousand additions; 2-byte weights take more.
absl::Status Compare(const Outcome& is, const Outcome& expected, double tolerance) {
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    if (!(std::abs(is.losses[i] - expected.losses[i]) <=
          tolerance * std::abs(expected.losses[i]))) {
      return absl::InternalError(absl::StrCat("losses are ", absl::StrJoin(is.losses, " "),
                                              "; expected ", absl::StrJoin(expected.losses, " ")));
    }
  }
  for (size_t i = 0; i < expected.weights.size(); ++i) {
    const double off = (is.weights[i] - expected.weights[i]).abs().max().item<double>();
    if (!(off <= tolerance * 0.1)) {
      return absl::InternalError(absl::StrFormat("weight %d is off by %g", i, off));
    }
  }
  return absl::OkStatus();
}

std::string Described(const Way& way) {
  return absl::StrCat(way.size, " ranks, stage ", way.stage, ", ", way.accumulation,
                      " micro-batches, shape ", static_cast<int>(way.shape), ", ", way.units.size(),
                      " units, ", absl::StrJoin(way.more, ", "));
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
          DT_RETURN_IF_ERROR(Annotate(outcome.status(), Described(ways[i])));
          DT_RETURN_IF_ERROR(
              Annotate(Compare(*outcome, Expected(ways[i]), tolerance), Described(ways[i])));
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
                             {.units = {{"first", "middle", "second"}}},
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

// What each rank's first step ends with.
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
    Model model(Shape::kPlain);
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
    Model model(way.shape);
    EngineOptions options;
    options.units = way.units;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model, options));
    Source source{way, context.rank};
    const auto loss = [&](const at::Tensor& batch) {
      return Loss(model.Loss(batch), batch.size(0));
    };
    for (int step = 0; step < 2; ++step) {
      DT_ASSIGN_OR_RETURN(const auto report, engine->Step(source, loss));
      const plan::ShardPlan& shards = *engine->state().shards;
      const int64_t most = 4 * (shards.shard_elements() + 3 * shards.largest_bucket());
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
