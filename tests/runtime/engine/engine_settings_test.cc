// Settings of single engines, in the program and in the configuration, and factors of the learning
// rate, beside plain LibTorch loops.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "tests/runtime/testing/rank_numbers.h"
#include "tests/runtime/testing/sine_rows.h"
#include "torch/nn/module.h"
#include "torch/nn/utils/clip_grad.h"
#include "torch/optim/adamw.h"
#include "torch/optim/sgd.h"

namespace dtrain::engine_settings_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::NumbersOf;
using testing::RankContext;

constexpr int64_t kRows = 12;  // In a step.
constexpr int kSteps = 7;

struct Net : torch::nn::Module {
  explicit Net(uint64_t seed) {
    at::manual_seed(seed);
    weight = register_parameter("weight", at::randn({4, 3}));
    bias = register_parameter("bias", at::randn({3}));
  }
  at::Tensor Loss(const at::Tensor& x) const {
    return (at::tanh(x.matmul(weight) + bias) - 0.5).square().sum();
  }
  at::Tensor weight, bias;
};

using Source = testing::SineRowsSource<kRows>;

void Append(const Net& net, std::vector<double>& numbers) {
  for (const at::Tensor& parameter : net.parameters()) {
    const at::Tensor flat = parameter.detach().to(at::kDouble).contiguous().view({-1});
    numbers.insert(numbers.end(), flat.const_data_ptr<double>(),
                   flat.const_data_ptr<double>() + flat.numel());
  }
}

void ExpectNear(const std::vector<double>& numbers, const std::vector<double>& expected) {
  ASSERT_EQ(numbers.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(numbers[i], expected[i], 2e-5) << i;
  }
}

// Trains without dtrain. `before` sees each step before it is taken.
void TrainPlainly(
    Net& net, torch::optim::Optimizer& optimizer, double clipping,
    const std::function<void(int step)>& before = [](int) {}) {
  for (int step = 0; step < kSteps; ++step) {
    before(step);
    optimizer.zero_grad();
    (net.Loss(testing::SineRows(step, 0, kRows)) / kRows).backward();
    if (clipping > 0) {
      torch::nn::utils::clip_grad_norm_(net.parameters(), clipping);
    }
    optimizer.step();
  }
}

std::vector<double> PlainPair() {
  std::vector<double> numbers;
  Net generator(5);
  torch::optim::AdamW first(
      std::vector<torch::optim::OptimizerParamGroup>{
          {{generator.weight},
           std::make_unique<torch::optim::AdamWOptions>(
               torch::optim::AdamWOptions(2e-2).betas({0.5, 0.9}).weight_decay(0))},
          {{generator.bias},
           std::make_unique<torch::optim::AdamWOptions>(
               torch::optim::AdamWOptions(5e-2).betas({0.5, 0.9}).weight_decay(0))}},
      torch::optim::AdamWOptions(2e-2));
  TrainPlainly(generator, first, /*clipping=*/0);
  Append(generator, numbers);
  Net discriminator(6);
  torch::optim::AdamW second(
      discriminator.parameters(),
      torch::optim::AdamWOptions(1e-3).betas({0.8, 0.99}).eps(1e-6).weight_decay(0.1));
  TrainPlainly(discriminator, second, /*clipping=*/0.05);
  Append(discriminator, numbers);
  return numbers;
}

constexpr char kInConfiguration[] =
    R"(engines={"generator":{"lr":2e-2,"betas":[0.5,0.9],"weight_decay":0,"gradient_clipping":0,)"
    R"("gradient_accumulation_steps":3,"param_groups":[{"params":["bias"],"lr":5e-2}]},)"
    R"("discriminator":{"lr":1e-3,"eps":1e-6}})";

struct PairWay {
  int size = 1;
  int stage = 0;
  bool in_configuration = false;  // Else in EngineOptions.
};

// The rest of the discriminator's settings, which is the same for all engines.
absl::StatusOr<std::unique_ptr<Job>> MakePairJob(RankContext* context, const std::string& folder,
                                                 const PairWay& way) {
  std::vector<std::string> overrides = {
      "train_micro_batch_size_per_gpu=1", "gradient_clipping=0.05",
      absl::StrCat("zero_optimization.stage=", way.stage),
      "zero_optimization.stage3_param_persistence_threshold=0",
      R"(optimizer={"type":"AdamW","params":{"lr":3e-3,"betas":[0.8,0.99],"weight_decay":0.1}})"};
  if (way.in_configuration) {
    overrides.emplace_back(kInConfiguration);
  }
  return testing::MakeTestJob({.run_dir = folder, .overrides = overrides, .rank = context});
}

std::pair<EngineOptions, EngineOptions> PairOptions(const PairWay& way) {
  EngineOptions generator;
  generator.name = "generator";
  EngineOptions discriminator;
  discriminator.name = "discriminator";
  if (way.in_configuration) {
    discriminator.settings.lr = 77;  // What the configuration gives holds before it.
    return {generator, discriminator};
  }
  generator.settings = {.lr = 2e-2,
                        .weight_decay = 0,
                        .betas = {{0.5, 0.9}},
                        .gradient_clipping = 0,
                        .gradient_accumulation_steps = 3,
                        .groups = {{.params = {"bias"}, .lr = 5e-2}}};
  discriminator.settings = {.lr = 1e-3, .eps = 1e-6};
  return {generator, discriminator};
}

std::vector<double> WithEngines(const PairWay& way) {
  return NumbersOf(
      way.size, [&](RankContext& context, std::vector<double>& numbers) -> absl::Status {
        at::set_num_threads(1);
        const testing::TempFolder folder;
        DT_ASSIGN_OR_RETURN(auto job, MakePairJob(&context, folder.path(), way));
        const auto [first, second] = PairOptions(way);
        Net generator(5), discriminator(6);
        DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, generator, first));
        DT_ASSIGN_OR_RETURN(auto other, Engine::Create(*job, discriminator, second));
        Source thirds{.rank = context.rank, .size = context.size, .accumulation = 3};
        Source whole{.rank = context.rank, .size = context.size};
        for (int step = 0; step < kSteps; ++step) {
          DT_ASSIGN_OR_RETURN(const StepReport report,
                              engine->Step(thirds, [&](const at::Tensor& x) {
                                return Loss(generator.Loss(x), x.size(0));
                              }));
          if (report.learning_rate != 2e-2) {
            return absl::InternalError(absl::StrCat("lr ", report.learning_rate));
          }
          DT_RETURN_IF_ERROR(other
                                 ->Step(whole,
                                        [&](const at::Tensor& x) {
                                          return Loss(discriminator.Loss(x), x.size(0));
                                        })
                                 .status());
        }
        DT_RETURN_IF_ERROR(engine->WithParameters([&] { Append(generator, numbers); }));
        return other->WithParameters([&] { Append(discriminator, numbers); });
      });
}

TEST(EngineSettingsTest, EachOfTwoEnginesTrainsByItsOwn) {
  at::set_num_threads(1);
  const std::vector<double> plain = PlainPair();
  for (const PairWay& way :
       {PairWay{1, 0, false}, PairWay{2, 0, true}, PairWay{2, 3, false}, PairWay{1, 2, true}}) {
    SCOPED_TRACE(absl::StrCat(way.size, " ranks, stage ", way.stage,
                              way.in_configuration ? ", in the configuration" : ""));
    ExpectNear(WithEngines(way), plain);
  }
}

// The message of an engine's creation or of its first step.
std::string SaidOf(const EngineOptions& options, const std::vector<std::string>& more = {}) {
  at::set_num_threads(1);
  const testing::TempFolder folder;
  std::vector<std::string> overrides = {"train_micro_batch_size_per_gpu=1"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  auto job = *testing::MakeTestJob({.run_dir = folder.path(), .overrides = overrides});
  Net net(5);
  auto engine = Engine::Create(*job, net, options);
  absl::Status status = engine.status();
  if (engine.ok()) {
    Source source;
    status = (*engine)
                 ->Step(source, [&](const at::Tensor& x) { return Loss(net.Loss(x), x.size(0)); })
                 .status();
  }
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

EngineOptions OptionsWith(const EngineSettings& settings) {
  EngineOptions options;
  options.settings = settings;
  return options;
}

TEST(EngineSettingsTest, MistakesAreNamed) {
  EXPECT_THAT(SaidOf(OptionsWith({.lr = -1})), HasSubstr("EngineOptions::settings.lr is -1"));
  EXPECT_THAT(SaidOf(OptionsWith({.betas = {{0.9, 1.0}}})), HasSubstr("settings.betas is 1"));
  EXPECT_THAT(SaidOf(OptionsWith({.gradient_accumulation_steps = 0})),
              HasSubstr("settings.gradient_accumulation_steps is 0; allowed: 1 or more"));
  EXPECT_THAT(SaidOf(OptionsWith({.groups = {{.params = {"*.gain"}, .lr = 1}}})),
              AllOf(HasSubstr("param_groups[0] of the engine's own settings"),
                    HasSubstr("\"*.gain\" names no trainable parameter")));
  EXPECT_THAT(SaidOf(OptionsWith({.lr = 1}),
                     {"optimizer.params.lr=0", R"(scheduler={"type":"WarmupLR","params":{}})"}),
              HasSubstr("optimizer.params.lr, which is 0"));
  for (const auto& [settings, name] : std::vector<std::pair<EngineSettings, std::string>>{
           {{.betas = {{0.5, 0.9}}}, "betas"},
           {{.eps = 1e-6}, "eps"},
           {{.groups = {{.params = {"*"}, .betas = {{0.5, 0.9}}}}}, "groups[].betas"}}) {
    EXPECT_THAT(SaidOf(OptionsWith(settings), {"optimizer.type=SGD"}),
                HasSubstr("EngineOptions::settings." + name +
                          " does not belong to optimizer.type SGD, which takes lr, weight_decay"));
  }
  EXPECT_THAT(SaidOf({}, {R"(engines={"critic":{"lr":1}})"}),
              HasSubstr("engines.critic holds for no engine"));
}

// The factor of step n; the rate of the configuration is 0.5.
double Factor(int64_t step) { return 1.0 / static_cast<double>(1 + step); }

TEST(LrFactorTest, ScalesTheRateOfEachStepOnAnyNumberOfRanks) {
  at::set_num_threads(1);
  std::vector<double> plain;
  {
    Net net(5);
    torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.5));
    TrainPlainly(net, optimizer, /*clipping=*/0, [&](int step) {
      for (auto& group : optimizer.param_groups()) {
        static_cast<torch::optim::SGDOptions&>(group.options()).lr(0.5 * Factor(step));
      }
    });
    Append(net, plain);
  }
  for (const int size : {1, 2}) {
    ExpectNear(
        NumbersOf(size,
                  [&](RankContext& context, std::vector<double>& numbers) -> absl::Status {
                    at::set_num_threads(1);
                    const testing::TempFolder folder;
                    DT_ASSIGN_OR_RETURN(
                        auto job,
                        testing::MakeTestJob({.run_dir = folder.path(),
                                              .overrides = {"train_micro_batch_size_per_gpu=1",
                                                            "gradient_clipping=0",
                                                            R"(optimizer={"type":"SGD","params":)"
                                                            R"({"lr":0.5}})"},
                                              .rank = &context}));
                    Net net(5);
                    EngineOptions options;
                    options.lr_factor = Factor;
                    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, net, options));
                    Source source{.rank = context.rank, .size = context.size};
                    for (int step = 0; step < kSteps; ++step) {
                      DT_ASSIGN_OR_RETURN(const StepReport report,
                                          engine->Step(source, [&](const at::Tensor& x) {
                                            return Loss(net.Loss(x), x.size(0));
                                          }));
                      if (report.learning_rate != 0.5 * Factor(step)) {
                        return absl::InternalError(absl::StrCat("lr ", report.learning_rate));
                      }
                    }
                    Append(net, numbers);
                    return absl::OkStatus();
                  }),
        plain);
  }
}

TEST(LrFactorTest, OneThatIsNoFactorOrThrowsEndsTheStepBeforeAWeightChanges) {
  EngineOptions options;
  options.lr_factor = [](int64_t) { return std::nan(""); };
  EXPECT_THAT(SaidOf(options), HasSubstr("EngineOptions::lr_factor gives nan for step 0"));
  options.lr_factor = [](int64_t) { return -0.5; };
  EXPECT_THAT(SaidOf(options), HasSubstr("lr_factor gives -0.5"));
  options.lr_factor = [](int64_t) -> double { throw std::runtime_error("no such table"); };
  EXPECT_THAT(SaidOf(options), HasSubstr("in EngineOptions::lr_factor of step 0: no such table"));
}

TEST(LrFactorTest, RanksThatDifferAreRefusedTogether) {
  std::vector<std::string> said;
  for (const auto& result :
       testing::RunRanks({.size = 2}, [&](RankContext& context) -> absl::Status {
         at::set_num_threads(1);
         const testing::TempFolder folder;
         DT_ASSIGN_OR_RETURN(
             auto job, testing::MakeTestJob({.run_dir = folder.path(),
                                             .overrides = {"train_micro_batch_size_per_gpu=1"},
                                             .rank = &context}));
         Net net(5);
         EngineOptions options;
         options.lr_factor = [&](int64_t) { return 1.0 + context.rank; };
         DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, net, options));
         Source source{.rank = context.rank, .size = context.size};
         return engine
             ->Step(source, [&](const at::Tensor& x) { return Loss(net.Loss(x), x.size(0)); })
             .status();
       })) {
    EXPECT_TRUE(absl::IsInvalidArgument(result.status)) << result.status;
    said.emplace_back(result.status.message());
  }
  EXPECT_THAT(said, Each(HasSubstr("lr_factor gives 1 on rank 0 and 2 on rank 1 for step 1")));
}

}  // namespace
}  // namespace dtrain::engine_settings_test
