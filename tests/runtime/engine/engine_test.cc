// One rank: what the engine does to parameters, against torch's own optimizer formulas.
#include "dtrain/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ATen/ATen.h"
#include "runtime/optimizer/engine_state.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/batchnorm.h"

namespace dtrain::engine_test {
namespace {

using ::testing::HasSubstr;

// Two trainable tensors, one of them used twice; one frozen; one never used.
class Odd : public torch::nn::Module {
 public:
  Odd() {
    a = register_parameter("a", at::full({3, 5}, 0.5));
    b = register_parameter("b", at::full({7}, -1.0));
    frozen = register_parameter("frozen", at::full({2}, 3.0), /*requires_grad=*/false);
    unused = register_parameter("unused", at::full({4}, 2.0));
  }
  at::Tensor Loss(const at::Tensor& x) {
    return (a.matmul(x).square().sum() + (a * a).sum() + (b * b).sum()) * frozen.sum();
  }
  at::Tensor a, b, frozen, unused;
};

struct Inputs {
  int64_t calls = 0;
  absl::StatusOr<at::Tensor> Next() {
    ++calls;
    return at::full({5}, 0.1 * static_cast<double>(calls));
  }
};

class EngineTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Job>> MakeJob(std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(), "train_micro_batch_size_per_gpu=1");
    return testing::MakeTestJob({.run_dir = folder_.path(), .overrides = std::move(overrides)});
  }
  testing::TempFolder folder_;
};

TEST_F(EngineTest, OneStepIsAdamWOnTheClippedMeanGradient) {
  auto job = MakeJob({"gradient_clipping=0.5", R"(optimizer={"type":"AdamW","params":{"lr":0.01,)"
                                               R"("betas":[0.9,0.99],"weight_decay":0.1}})"});
  ASSERT_TRUE(job.ok()) << job.status();
  Odd model;
  Odd reference;
  auto engine = Engine::Create(**job, model);
  ASSERT_TRUE(engine.ok()) << engine.status();
  Inputs inputs;
  const auto report = (*engine)->Step(inputs, [&](const at::Tensor& x) { return model.Loss(x); });
  ASSERT_TRUE(report.ok()) << report.status();

  const at::Tensor loss = reference.Loss(at::full({5}, 0.1));
  loss.backward();
  EXPECT_NEAR(report->loss, loss.item<double>(), 1e-4 * loss.item<double>());
  const double norm = std::sqrt(reference.a.grad().square().sum().item<double>() +
                                reference.b.grad().square().sum().item<double>());
  EXPECT_NEAR(report->grad_norm, norm, 1e-5 * norm);
  const at::NoGradGuard no_grad;
  for (const auto& [ours, theirs] :
       {std::pair(model.a, reference.a), std::pair(model.b, reference.b)}) {
    const at::Tensor g = theirs.grad().to(at::kDouble) * (0.5 / (norm + 1e-6));
    // First step: m / (1 - beta1) = g and v / (1 - beta2) = g^2.
    const at::Tensor expected =
        theirs.to(at::kDouble) * (1 - 0.01 * 0.1) - 0.01 * g / (g.abs() + 1e-8);
    EXPECT_LT((ours.to(at::kDouble) - expected).abs().max().item<double>(), 1e-6);
  }
  EXPECT_TRUE(model.frozen.equal(reference.frozen));
  // An unused parameter has gradient zero: only weight decay moves it.
  EXPECT_NEAR(model.unused[0].item<double>(), 2.0 * (1 - 0.01 * 0.1), 1e-6);
  EXPECT_FALSE(model.a.grad().defined()) << "gradients are released after the step";
}

TEST_F(EngineTest, ParametersAreViewsOfOneFlatBufferAndKeepTheirValues) {
  auto job = MakeJob({});
  ASSERT_TRUE(job.ok()) << job.status();
  Odd model;
  auto engine = Engine::Create(**job, model);
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_TRUE(model.a.is_alias_of((*engine)->state().flat->values()));
  EXPECT_TRUE(model.b.is_alias_of((*engine)->state().flat->values()));
  EXPECT_TRUE(model.a.equal(at::full({3, 5}, 0.5)));
}

TEST_F(EngineTest, AccumulationOverMicroBatchesIsTheSumOverTheirCounts) {
  auto job = MakeJob({"gradient_accumulation_steps=4", "gradient_clipping=0"});
  ASSERT_TRUE(job.ok()) << job.status();
  Odd model;
  Odd reference;
  auto engine = Engine::Create(**job, model);
  ASSERT_TRUE(engine.ok()) << engine.status();
  Inputs inputs;
  // Counts 1, 2, 3, 4: a padded micro-batch weighs by its samples.
  const auto report = (*engine)->Step(
      inputs, [&](const at::Tensor& x) { return Loss(model.Loss(x), inputs.calls); });
  ASSERT_TRUE(report.ok()) << report.status();
  at::Tensor sum = at::zeros({});
  for (int i = 1; i <= 4; ++i) {
    sum = sum + reference.Loss(at::full({5}, 0.1 * i));
  }
  EXPECT_EQ(report->tokens, 10);
  EXPECT_NEAR(report->loss, sum.item<double>() / 10, 1e-5 * sum.item<double>());
  (sum / 10).backward();
  const double norm = std::sqrt(reference.a.grad().square().sum().item<double>() +
                                reference.b.grad().square().sum().item<double>());
  EXPECT_NEAR(report->grad_norm, norm, 1e-5 * norm);
}

TEST_F(EngineTest, AStepWhoseLossThrowsLeavesEverythingAsItWas) {
  auto job = MakeJob({});
  ASSERT_TRUE(job.ok()) << job.status();
  class Normed : public torch::nn::Module {
   public:
    Normed() { norm = register_module("norm", torch::nn::BatchNorm1d(5)); }
    torch::nn::BatchNorm1d norm{nullptr};
  } model;
  auto engine = Engine::Create(**job, model);
  ASSERT_TRUE(engine.ok()) << engine.status();
  struct Counter final : Tracked {
    int64_t at = 0;
    absl::StatusOr<int64_t> Next() { return at++; }
    Json SaveState() const override { return {{"at", at}}; }
    absl::Status RestoreState(const Json& state) override {
      at = state["at"].get<int64_t>();
      return absl::OkStatus();
    }
  } data;
  const at::Tensor mean_before = model.norm->running_mean.clone();
  at::randn({1});  // The second number of a pair is kept for the next call: part of the state.
  const auto draw = [] { return at::cat({at::randn({3}), at::rand({3}), at::randn({20})}); };
  at::Tensor drawn;
  for (int failure = 0; failure < 2; ++failure) {
    const auto report = (*engine)->Step(data, [&](int64_t) -> at::Tensor {
      const at::Tensor numbers = draw();
      EXPECT_TRUE(failure == 0 || numbers.equal(drawn));
      drawn = numbers;
      model.norm(at::randn({4, 5}));
      throw std::runtime_error("bad sample");
    });
    EXPECT_EQ(report.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(report.status().message()),
                HasSubstr("in the loss function: bad sample"));
  }
  EXPECT_EQ(data.at, 0);
  EXPECT_TRUE(model.norm->running_mean.equal(mean_before));
  EXPECT_EQ((*engine)->step(), 0);
  // The same step can be taken again.
  const auto report = (*engine)->Step(data, [&](int64_t) {
    EXPECT_TRUE(draw().equal(drawn)) << "a step that is taken again draws the same numbers";
    return model.norm(at::randn({4, 5})).sum();
  });
  EXPECT_TRUE(report.ok()) << report.status();
  EXPECT_EQ((*engine)->step(), 1);
}

TEST_F(EngineTest, ANonFiniteGradientSkipsTheUpdateAndCounts) {
  auto job = MakeJob({});
  ASSERT_TRUE(job.ok()) << job.status();
  Odd model;
  auto engine = Engine::Create(**job, model);
  ASSERT_TRUE(engine.ok()) << engine.status();
  Inputs inputs;
  const at::Tensor before = model.a.detach().clone();
  const auto report = (*engine)->Step(inputs, [&](const at::Tensor& x) {
    return model.Loss(x) * std::numeric_limits<double>::infinity();
  });
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->skipped);
  EXPECT_TRUE(model.a.equal(before));
  EXPECT_EQ((*engine)->state().progress.skipped, 1);
  EXPECT_EQ((*engine)->step(), 1);
}

TEST_F(EngineTest, TypesThatAreNotSupportedAreRefusedByName) {
  auto job = MakeJob({});
  ASSERT_TRUE(job.ok()) << job.status();
  class Half : public torch::nn::Module {
   public:
    Half() { register_parameter("half_weight", at::ones({2}, at::kBFloat16)); }
  } half;
  const auto engine = Engine::Create(**job, half);
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(engine.status().message()), HasSubstr("half_weight"));
  class Empty : public torch::nn::Module {
  } empty;
  EXPECT_EQ(Engine::Create(**job, empty).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(EngineTest, ALossThatDependsOnNoParameterIsRefused) {
  auto job = MakeJob({});
  ASSERT_TRUE(job.ok()) << job.status();
  Odd model;
  auto engine = Engine::Create(**job, model);
  ASSERT_TRUE(engine.ok()) << engine.status();
  Inputs inputs;
  const auto report = (*engine)->Step(inputs, [](const at::Tensor& x) { return x.sum(); });
  EXPECT_EQ(report.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*engine)->Update().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(EngineTest, EvaluateRunsInEvalModeWithoutGradientsAndPutsEveryModeBack) {
  auto job = MakeJob({"eval_batches=3"});
  ASSERT_TRUE(job.ok()) << job.status();
  Odd model;
  const auto norm = [&](const char* name) {
    return model.register_module(
        name, torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(5).affine(false)));
  };
  torch::nn::BatchNorm1d trains = norm("trains");
  torch::nn::BatchNorm1d rests = norm("rests");
  rests->eval();  // Programs freeze a layer's statistics in this way.
  auto engine = Engine::Create(**job, model);
  ASSERT_TRUE(engine.ok()) << engine.status();
  Inputs inputs;
  bool training = true;
  bool gradients = true;
  const auto loss = (*engine)->Evaluate(inputs, [&](const at::Tensor& x) {
    training = model.is_training() || trains->is_training() || rests->is_training();
    const at::Tensor value = model.Loss(x);
    gradients = value.requires_grad();
    return value;
  });
  ASSERT_TRUE(loss.ok()) << loss.status();
  EXPECT_FALSE(training);
  EXPECT_FALSE(gradients);
  EXPECT_TRUE(model.is_training());
  EXPECT_TRUE(trains->is_training());
  EXPECT_FALSE(rests->is_training());
  EXPECT_EQ(inputs.calls, 3);
}

}  // namespace
}  // namespace dtrain::engine_test
