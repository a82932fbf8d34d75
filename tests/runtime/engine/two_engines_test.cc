// Two engines whose losses go through each other's parameters: a generator and its discriminator,
// beside a plain LibTorch loop.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "tests/runtime/testing/rank_numbers.h"
#include "tests/runtime/testing/sine_rows.h"
#include "torch/nn/module.h"

namespace dtrain::two_engines_test {
namespace {

using testing::NumbersOf;
using testing::RankContext;

constexpr int64_t kRows = 8;
constexpr int kSteps = 6;
constexpr double kRate = 0.5;

struct Generator : torch::nn::Module {
  Generator() {
    weight = register_parameter("weight", at::randn({4, 3}));
    bias = register_parameter("bias", at::randn({3}));
  }
  at::Tensor Make(const at::Tensor& z) const { return at::tanh(z.matmul(weight) + bias); }
  at::Tensor weight, bias;
};

struct Discriminator : torch::nn::Module {
  Discriminator() {
    weight = register_parameter("weight", at::randn({3, 5}));
    out = register_parameter("out", at::randn({5}));
  }
  at::Tensor Score(const at::Tensor& x) const { return at::tanh(x.matmul(weight)).matmul(out); }
  at::Tensor weight, out;
};

struct Pair {
  Generator generator = {};
  Discriminator discriminator = {};
  bool detaches = true;  // False: the discriminator's loss goes through the generator too.

  at::Tensor OfGenerator(const at::Tensor& z) const {
    return at::softplus(-discriminator.Score(generator.Make(z))).sum();
  }
  at::Tensor OfDiscriminator(const at::Tensor& z) const {
    const at::Tensor made = detaches ? generator.Make(z).detach() : generator.Make(z);
    return at::softplus(-discriminator.Score(z.narrow(1, 0, 3))).sum() +
           at::softplus(discriminator.Score(made)).sum();
  }
  void Append(std::vector<double>& numbers) const {
    for (const auto& parameters : {generator.parameters(), discriminator.parameters()}) {
      for (const at::Tensor& parameter : parameters) {
        const at::Tensor flat = parameter.detach().to(at::kDouble).contiguous().view({-1});
        numbers.insert(numbers.end(), flat.const_data_ptr<double>(),
                       flat.const_data_ptr<double>() + flat.numel());
      }
    }
  }
};

// Trains both without dtrain: zero_grad, backward, SGD.
std::vector<double> PlainLoop(bool detaches) {
  at::manual_seed(5);
  Pair pair{.detaches = detaches};
  const auto step = [](torch::nn::Module& module, const std::function<at::Tensor()>& loss) {
    module.zero_grad();
    (loss() / kRows).backward();
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : module.parameters()) {
      parameter.sub_(parameter.grad() * kRate);
    }
  };
  for (int i = 0; i < kSteps; ++i) {
    const at::Tensor z = testing::SineRows(i, 0, kRows);
    step(pair.generator, [&] { return pair.OfGenerator(z); });
    step(pair.discriminator, [&] { return pair.OfDiscriminator(z); });
  }
  std::vector<double> numbers;
  pair.Append(numbers);
  return numbers;
}

struct Way {
  int stage = 0;
  int accumulation = 1;
  bool detaches = true;
  bool halves = false;  // Backward and Update in place of Step.
  std::vector<std::string> more = {};
};

using Source = testing::SineRowsSource<kRows>;

absl::StatusOr<std::unique_ptr<Job>> MakeJob(RankContext* context, const std::string& folder,
                                             const Way& way) {
  std::vector<std::string> overrides = {
      "train_micro_batch_size_per_gpu=1",
      "gradient_clipping=0",
      absl::StrCat("gradient_accumulation_steps=", way.accumulation),
      absl::StrCat("zero_optimization.stage=", way.stage),
      "zero_optimization.stage3_param_persistence_threshold=0",
      absl::StrCat(R"(optimizer={"type":"SGD","params":{"lr":)", kRate, "}}")};
  overrides.insert(overrides.end(), way.more.begin(), way.more.end());
  return testing::MakeTestJob({.run_dir = folder, .overrides = overrides, .rank = context});
}

using LossOf = std::function<at::Tensor(const at::Tensor& z)>;

absl::Status StepOf(Engine& engine, Source& source, const Way& way, const LossOf& loss) {
  if (!way.halves) {
    return engine.Step(source, [&](const at::Tensor& z) { return Loss(loss(z), z.size(0)); })
        .status();
  }
  for (int micro = 0; micro < way.accumulation; ++micro) {
    DT_ASSIGN_OR_RETURN(const at::Tensor z, source.Next());
    DT_RETURN_IF_ERROR(engine.Backward(Loss(loss(z), z.size(0)),
                                       {.last_micro_batch = micro + 1 == way.accumulation}));
  }
  return engine.Update().status();
}

// The weights of both after the last step.
std::vector<double> WithEngines(const Way& way) {
  return NumbersOf(2, [&](RankContext& context, std::vector<double>& numbers) -> absl::Status {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job, MakeJob(&context, folder.path(), way));
    at::manual_seed(5);
    Pair pair{.detaches = way.detaches};
    DT_ASSIGN_OR_RETURN(auto generator, Engine::Create(*job, pair.generator));
    DT_ASSIGN_OR_RETURN(auto discriminator, Engine::Create(*job, pair.discriminator));
    Source source{.rank = context.rank, .size = context.size, .accumulation = way.accumulation};
    for (int i = 0; i < kSteps; ++i) {
      Source again = source;
      DT_RETURN_IF_ERROR(StepOf(*generator, source, way,
                                [&](const at::Tensor& z) { return pair.OfGenerator(z); }));
      DT_RETURN_IF_ERROR(StepOf(*discriminator, again, way,
                                [&](const at::Tensor& z) { return pair.OfDiscriminator(z); }));
    }
    absl::Status inner;
    DT_RETURN_IF_ERROR(generator->WithParameters(
        [&] { inner = discriminator->WithParameters([&] { pair.Append(numbers); }); }));
    return inner;
  });
}

void ExpectNear(const std::vector<double>& numbers, const std::vector<double>& expected) {
  ASSERT_EQ(numbers.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(numbers[i], expected[i], 1e-5) << i;
  }
}

TEST(TwoEnginesTest, AGeneratorAndItsDiscriminatorTrainAsInAPlainLoopAtEveryStage) {
  for (const bool detaches : {true, false}) {
    const std::vector<double> plain = PlainLoop(detaches);
    for (const int stage : {0, 1, 2, 3}) {
      for (const bool halves : {false, true}) {
        SCOPED_TRACE(absl::StrCat("stage ", stage, detaches ? ", detached" : "",
                                  halves ? ", in halves" : ""));
        ExpectNear(WithEngines({.stage = stage, .detaches = detaches, .halves = halves}), plain);
      }
    }
  }
}

TEST(TwoEnginesTest, AlsoWithMicroBatches) {
  const std::vector<double> plain = PlainLoop(/*detaches=*/false);
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(absl::StrCat("stage ", stage));
    const Way way{.stage = stage, .accumulation = 2, .detaches = false};
    ExpectNear(WithEngines(way), plain);
  }
}

// Two engines, the discriminator's the second, and what their creation or their first step says.
std::string SaidWith(const std::string& setting, Pair& pair) {
  const testing::TempFolder folder;
  auto job = *MakeJob(nullptr, folder.path(), {.more = {setting}});
  EngineOptions options;
  options.name = "generator";
  const auto generator = Engine::Create(*job, pair.generator, options);
  if (!generator.ok()) {
    return std::string(generator.status().message());
  }
  options.name = "discriminator";
  const auto discriminator = Engine::Create(*job, pair.discriminator, options);
  if (!discriminator.ok()) {
    return std::string(discriminator.status().message());
  }
  ::testing::internal::CaptureStderr();
  Source source;
  for (Engine* const engine : {generator->get(), discriminator->get()}) {
    const absl::Status stepped = StepOf(*engine, source, {}, [&](const at::Tensor& z) {
      return engine == generator->get() ? pair.OfGenerator(z) : pair.OfDiscriminator(z);
    });
    if (!stepped.ok()) {
      ::testing::internal::GetCapturedStderr();
      EXPECT_TRUE(absl::IsInvalidArgument(stepped)) << stepped;
      return std::string(stepped.message());
    }
  }
  return ::testing::internal::GetCapturedStderr();
}

constexpr char kGroups[] = "optimizer.param_groups=";
constexpr char kNotDecayed[] = "optimizer.no_weight_decay=";

TEST(TwoEnginesTest, AGroupOfSettingsMayBeForOneOfThem) {
  at::set_num_threads(1);
  Pair pair;
  const at::Tensor out = pair.discriminator.out.detach().clone();
  const at::Tensor weight = pair.discriminator.weight.detach().clone();
  const at::Tensor made = pair.generator.weight.detach().clone();
  const std::string said =
      SaidWith(absl::StrCat(kGroups, R"([{"engine":"discriminator","params":["out"],"lr":0},)",
                            R"({"engine":"generator","params":["weight"],"lr":0}])"),
               pair);
  EXPECT_THAT(said, ::testing::Not(::testing::HasSubstr("param_groups")));
  EXPECT_TRUE(pair.discriminator.out.equal(out));
  EXPECT_FALSE(pair.discriminator.weight.equal(weight));
  EXPECT_TRUE(pair.generator.weight.equal(made));
}

TEST(TwoEnginesTest, APatternThatOneOfThemHasNothingForNamesIt) {
  at::set_num_threads(1);
  Pair pair;
  EXPECT_THAT(SaidWith(absl::StrCat(kGroups, R"([{"params":["out"],"lr":0}])"), pair),
              ::testing::AllOf(::testing::HasSubstr("\"out\" names no trainable parameter of "
                                                    "engine \"generator\""),
                               ::testing::HasSubstr("\"engine\": \"NAME\"")));
  EXPECT_THAT(
      SaidWith(absl::StrCat(kGroups, R"([{"engine":"discriminator","params":["bias"],"lr":0}])"),
               pair),
      ::testing::HasSubstr("\"bias\" names no trainable parameter of engine \"discriminator\""));
}

// Known when the first step begins: it would train with other settings than meant.
TEST(TwoEnginesTest, ASettingThatHoldsForNoEngineIsRefusedBeforeAWeightChanges) {
  at::set_num_threads(1);
  const struct {
    std::string setting, says;
  } cases[] = {
      {absl::StrCat(kGroups, R"([{"engine":"generatr","params":["bias"],"lr":0}])"),
       "optimizer.param_groups[0].engine \"generatr\" is the name of no engine"},
      {absl::StrCat(kNotDecayed, R"(["bias","*.bais"])"),
       "optimizer.no_weight_decay: \"*.bais\" names no parameter of any engine; nearest: bias"}};
  for (const auto& c : cases) {
    Pair pair;
    const at::Tensor made = pair.generator.weight.detach().clone();
    const std::string said = SaidWith(c.setting, pair);
    EXPECT_THAT(said, ::testing::HasSubstr(c.says));
    EXPECT_THAT(said, ::testing::HasSubstr("called \"generator\", \"discriminator\""));
    EXPECT_TRUE(pair.generator.weight.equal(made)) << c.setting;
  }
  // Each pattern is of one of them.
  Pair pair;
  EXPECT_EQ(SaidWith(absl::StrCat(kNotDecayed, R"(["bias","out"])"), pair), "");
}

TEST(TwoEnginesTest, ANamedEngineAloneHasToHaveWhatTheListsName) {
  at::set_num_threads(1);
  for (const bool halves : {false, true}) {
    const testing::TempFolder folder;
    auto job =
        *MakeJob(nullptr, folder.path(), {.more = {absl::StrCat(kNotDecayed, R"(["outt"])")}});
    Pair pair;
    EngineOptions options;
    options.name = "discriminator";
    const auto engine = Engine::Create(*job, pair.discriminator, options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    Source source;
    for (int i = 0; i < 2; ++i) {
      const absl::Status stepped =
          StepOf(**engine, source, {.halves = halves},
                 [&](const at::Tensor& z) { return pair.OfDiscriminator(z); });
      EXPECT_TRUE(absl::IsInvalidArgument(stepped)) << stepped;
      EXPECT_THAT(std::string(stepped.message()), ::testing::HasSubstr("nearest: out"));
    }
    EXPECT_EQ((*engine)->step(), 0);
  }
}

// Two modules, and how the second one is tied to the first before any engine is made.
struct Tied {
  const char* what;
  std::function<void(Generator& first, Discriminator& second)> tie;
  std::string says;  // "": nothing is tied that would come apart.
};

std::vector<Tied> WaysToTie() {
  const auto says = [](const std::string& mine, const std::string& other) {
    return absl::StrCat(mine, " of engine \"second\" and ", other,
                        " of engine \"first\", which was made before, share memory");
  };
  return {{"nothing", [](Generator&, Discriminator&) {}, ""},
          {"set_data",
           [](Generator& first, Discriminator& second) {
             const at::NoGradGuard no_grad;
             second.out.set_data(first.weight.view({-1}).narrow(0, 2, 5));
           },
           says("parameter out", "parameter weight")},
          {"a frozen one",
           [](Generator& first, Discriminator& second) {
             const at::NoGradGuard no_grad;
             second.out.set_data(first.weight.view({-1}).narrow(0, 2, 5));
             second.out.set_requires_grad(false);
           },
           says("parameter out", "parameter weight")},
          {"two frozen ones",
           [](Generator& first, Discriminator& second) {
             const at::NoGradGuard no_grad;
             first.weight.set_requires_grad(false);
             second.out.set_data(first.weight.view({-1}).narrow(0, 2, 5));
             second.out.set_requires_grad(false);
           },
           ""},
          {"a buffer",
           [](Generator& first, Discriminator& second) {
             second.register_buffer("seen", first.bias.detach());
           },
           says("buffer seen", "parameter bias")},
          {"one tensor",
           [](Generator& first, Discriminator& second) {
             second.register_parameter("shared", first.bias);
           },
           says("parameter shared", "parameter bias")},
          {"columns of one matrix, which share nothing",
           [](Generator& first, Discriminator& second) {
             const at::NoGradGuard no_grad;
             const at::Tensor both = at::randn({5, 4});
             second.out.set_data(both.select(1, 0));
             first.bias.set_data(both.narrow(0, 0, 3).select(1, 1));
           },
           ""}};
}

TEST(TwoEnginesTest, WeightsThatTheirModulesShareAreRefusedByBothNames) {
  at::set_num_threads(1);
  for (const Tied& way : WaysToTie()) {
    for (const bool first_lives : {true, false}) {
      const testing::TempFolder folder;
      auto job = *MakeJob(nullptr, folder.path(), {});
      Generator one;
      Discriminator other;
      way.tie(one, other);
      EngineOptions options;
      options.name = "first";
      auto first = Engine::Create(*job, one, options);
      ASSERT_TRUE(first.ok()) << first.status() << way.what;
      if (!first_lives) {
        first->reset();
      }
      options.name = "second";
      const auto second = Engine::Create(*job, other, options);
      EXPECT_EQ(second.ok(), way.says.empty() || !first_lives) << way.what << second.status();
      if (!second.ok()) {
        EXPECT_TRUE(absl::IsInvalidArgument(second.status())) << second.status();
        EXPECT_THAT(std::string(second.status().message()), ::testing::HasSubstr(way.says))
            << way.what;
      }
    }
  }
}

}  // namespace
}  // namespace dtrain::two_engines_test
