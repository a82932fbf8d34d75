// One rank in bf16 and fp16: masters, rounding, loss scaling, against torch's operations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "ATen/ATen.h"
#include "absl/strings/str_cat.h"
#include "dtrain/engine.h"
#include "runtime/optimizer/engine_state.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/instancenorm.h"

namespace dtrain::engine_precision_test {
namespace {

using ::testing::HasSubstr;

class Net : public torch::nn::Module {
 public:
  Net() {
    at::manual_seed(5);
    far = register_parameter("far", at::randn({4, 6}) * 0.5);
    near = register_parameter("near", at::randn({6, 4}) * 0.5);
    frozen = register_parameter("frozen", at::full({4}, 1.5), /*requires_grad=*/false);
    table = register_buffer("table", at::full({4}, 0.25));
    count = register_buffer("count", at::zeros({1}, at::kLong));
  }
  at::Tensor Loss(const at::Tensor& x) {
    const at::Tensor h =
        at::tanh(x.to(far.scalar_type()).matmul(far.t()) * frozen + table.to(far.scalar_type()));
    return (h.matmul(near.t()) * gain).square().sum(at::kFloat);
  }
  at::Tensor far, near, frozen, table, count;
  double gain = 1;
};

struct Inputs {
  int64_t calls = 0;
  absl::StatusOr<at::Tensor> Next() {
    ++calls;
    return at::sin(at::arange(0, 12, at::kFloat).reshape({2, 6}) + static_cast<double>(calls));
  }
};

class PrecisionTest : public ::testing::Test {
 protected:
  // A job of one rank; `more`: overrides.
  absl::StatusOr<std::unique_ptr<Job>> MakeJob(const std::vector<std::string>& more) {
    std::vector<std::string> all = {
        "train_micro_batch_size_per_gpu=1", "gradient_clipping=0",
        R"(optimizer={"type":"AdamW","params":{"lr":0.01,"betas":[0.9,0.99],"weight_decay":0.1}})"};
    all.insert(all.end(), more.begin(), more.end());
    return testing::MakeTestJob({.run_dir = folder_.path(), .overrides = all});
  }
  testing::TempFolder folder_;
};

// torch's way of the same: working copy in `type`, gradients taken to fp32, AdamW on fp32 masters.
class Oracle {
 public:
  explicit Oracle(at::ScalarType type) : type_(type) {
    net.to(type);
    for (const at::Tensor& parameter : {net.near, net.far}) {
      working_.push_back(parameter);
    }
    const Net whole;
    masters_ = {whole.near.detach().clone(), whole.far.detach().clone()};
    for (const at::Tensor& master : masters_) {
      m_.push_back(at::zeros_like(master));
      v_.push_back(at::zeros_like(master));
    }
  }
  void Step(const at::Tensor& x) {
    (net.Loss(x) / kCount).backward();
    const at::NoGradGuard no_grad;
    ++step_;
    for (size_t i = 0; i < working_.size(); ++i) {
      const at::Tensor g = working_[i].grad().to(at::kFloat);
      m_[i] = m_[i] + (g - m_[i]) * 0.1;
      v_[i] = v_[i] * 0.99 + g * g * 0.01;
      const at::Tensor change = m_[i] / (1 - std::pow(0.9, step_)) /
                                ((v_[i] / (1 - std::pow(0.99, step_))).sqrt() + 1e-8);
      masters_[i] = masters_[i] - (masters_[i] * 0.1 + change) * 0.01;
      working_[i].copy_(masters_[i]);
      working_[i].mutable_grad().reset();
    }
  }
  static constexpr int64_t kCount = 2;
  Net net;

 private:
  at::ScalarType type_;
  std::vector<at::Tensor> working_, masters_, m_, v_;
  int step_ = 0;
};

class PrecisionTypes : public PrecisionTest, public ::testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Types, PrecisionTypes, ::testing::Values("bf16", "fp16"));

TEST_P(PrecisionTypes, TrainsAsTorchDoesWithAMasterOfItsOwn) {
  const bool bf16 = std::string(GetParam()) == "bf16";
  auto job = MakeJob({absl::StrCat(GetParam(), ".enabled=true"), "fp16.initial_scale_power=8"});
  ASSERT_TRUE(job.ok()) << job.status();
  Net net;
  Oracle oracle(bf16 ? at::kBFloat16 : at::kHalf);
  auto engine = Engine::Create(**job, net);
  ASSERT_TRUE(engine.ok()) << engine.status();
  Inputs inputs;
  Inputs same;
  for (int step = 0; step < 20; ++step) {
    const auto report = (*engine)->Step(
        inputs, [&](const at::Tensor& x) { return Loss(net.Loss(x), Oracle::kCount); });
    ASSERT_TRUE(report.ok()) << report.status();
    ASSERT_FALSE(report->skipped);
    EXPECT_EQ(report->loss_scale, bf16 ? 1 : 256);
    oracle.Step(*same.Next());
    // A master that differs by an ulp of fp32 may round to the neighbour in 8 (11) bits.
    const double ulp = bf16 ? 1.0 / 128 : 1.0 / 1024;
    for (const auto& [ours, theirs] :
         {std::pair(net.near, oracle.net.near), std::pair(net.far, oracle.net.far)}) {
      ASSERT_TRUE(at::allclose(ours.to(at::kFloat), theirs.to(at::kFloat), 2 * ulp, 1e-3))
          << "step " << step;
    }
  }
}

TEST_P(PrecisionTypes, CastsWhatComputesAndKeepsAnFp32Master) {
  const at::ScalarType type = std::string(GetParam()) == "bf16" ? at::kBFloat16 : at::kHalf;
  auto job = MakeJob({absl::StrCat(GetParam(), ".enabled=true")});
  ASSERT_TRUE(job.ok()) << job.status();
  Net net;
  const at::Tensor before = net.near.detach().clone();
  auto engine = Engine::Create(**job, net);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const EngineState& state = (*engine)->state();
  EXPECT_EQ(net.near.scalar_type(), type);
  EXPECT_EQ(net.frozen.scalar_type(), type);
  EXPECT_EQ(state.optimizer.master.scalar_type(), at::kFloat);
  const auto* const entry = state.flat->layout().Find("near");
  EXPECT_TRUE(
      state.optimizer.master.narrow(0, entry->offset, entry->elements).view({6, 4}).equal(before))
      << "not rounded";
  EXPECT_TRUE(net.near.equal(before.to(type)));
}

// Buffers of every kind, of which a counter goes beyond what 8 bits can count.
class Buffered : public torch::nn::Module {
 public:
  Buffered() {
    weight = register_parameter("weight", at::ones({4}));
    table = register_buffer("table", at::arange(0, 4, at::kFloat) / 3);
    exact = register_buffer("exact", at::arange(0, 4, at::kDouble) / 3);
    half = register_buffer("half", at::ones({2}, at::kBFloat16));
    whole = register_buffer("whole", at::arange(0, 4, at::kLong));
    flag = register_buffer("flag", at::ones({1}, at::kBool));
    counter = register_buffer("counter", at::zeros({}));
  }
  at::Tensor Loss(const at::Tensor& x) {
    const at::NoGradGuard no_grad;
    counter += 1;
    const at::AutoGradMode again(true);
    return (x.sum() * weight).square().sum(at::kFloat);
  }
  at::Tensor weight, table, exact, half, whole, flag, counter;
};

TEST_P(PrecisionTypes, BuffersKeepTheirTypesUnlessTheConfigurationCastsThem) {
  const std::string section = GetParam();
  const at::ScalarType type = section == "bf16" ? at::kBFloat16 : at::kHalf;
  for (const bool cast : {false, true}) {
    // A scale that the sums of squares below stand, so that no step is skipped.
    auto job = MakeJob({section + ".enabled=true", "fp16.initial_scale_power=4",
                        absl::StrCat(section, ".cast_buffers=", cast ? "true" : "false")});
    ASSERT_TRUE(job.ok()) << job.status();
    Buffered model;
    const at::Tensor table = model.table.clone();
    auto engine = Engine::Create(**job, model);
    ASSERT_TRUE(engine.ok()) << engine.status();
    EXPECT_EQ(model.weight.scalar_type(), type);
    EXPECT_EQ(model.table.scalar_type(), cast ? type : at::kFloat);
    EXPECT_EQ(model.table.equal(table), !cast);
    EXPECT_EQ(model.exact.scalar_type(), cast ? type : at::kDouble);
    EXPECT_EQ(model.half.scalar_type(), cast ? type : at::kBFloat16);
    EXPECT_EQ(model.whole.scalar_type(), at::kLong);
    EXPECT_EQ(model.flag.scalar_type(), at::kBool);
    Inputs inputs;
    for (int step = 0; step < 300; ++step) {
      const auto report =
          (*engine)->Step(inputs, [&](const at::Tensor& x) { return model.Loss(x); });
      ASSERT_TRUE(report.ok()) << report.status();
      ASSERT_FALSE(report->skipped) << step;
    }
    const double counted = model.counter.item<double>();
    EXPECT_EQ(counted, section == "bf16" && cast ? 256 : 300);
  }
}

// Norm layers of torch with and without a weight, and with an own one beside fp32 statistics.
class Norms : public torch::nn::Module {
 public:
  explicit Norms(bool affine) {
    weight = register_parameter("weight", at::ones({3}));
    batch = register_module(
        "batch", torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(3).affine(affine)));
    instance = register_module(
        "instance",
        torch::nn::InstanceNorm1d(
            torch::nn::InstanceNorm1dOptions(3).affine(affine).track_running_stats(true)));
  }
  at::Tensor Loss(const at::Tensor& x) {
    const at::Tensor h = x.view({2, 3, 2}).to(weight.scalar_type()) * weight.view({1, 3, 1});
    return instance(batch(h)).exp().mul(h).sum(at::kFloat);
  }
  at::Tensor weight;
  torch::nn::BatchNorm1d batch{nullptr};
  torch::nn::InstanceNorm1d instance{nullptr};
};

TEST_P(PrecisionTypes, NormLayersOfTorchTrainAndEvaluate) {
  for (const bool affine : {true, false}) {
    for (const bool cast : {false, true}) {
      SCOPED_TRACE(absl::StrCat(affine ? "with" : "without", " a weight, cast ", cast));
      auto job = MakeJob({absl::StrCat(GetParam(), ".enabled=true"),
                          absl::StrCat(GetParam(), ".cast_buffers=", cast ? "true" : "false"),
                          "fp16.initial_scale_power=4", "eval_batches=1"});
      ASSERT_TRUE(job.ok()) << job.status();
      Norms model(affine);
      auto engine = Engine::Create(**job, model);
      ASSERT_TRUE(engine.ok()) << engine.status();
      Inputs inputs;
      const auto loss = [&](const at::Tensor& x) { return model.Loss(x); };
      for (int step = 0; step < 3; ++step) {
        const auto report = (*engine)->Step(inputs, loss);
        ASSERT_TRUE(report.ok()) << report.status();
      }
      const auto evaluated = (*engine)->Evaluate(inputs, loss);
      ASSERT_TRUE(evaluated.ok()) << evaluated.status();
      EXPECT_EQ(model.batch->num_batches_tracked.item<int64_t>(), 3);
      EXPECT_FALSE(model.batch->running_mean.eq(0).all().item<bool>());
    }
  }
}

// Statistics that a 2-byte type could not follow, beside their exact values: of a batch that stays
// the same the running mean after n steps is its mean times 1 - (1 - momentum)^n.
TEST_P(PrecisionTypes, StatisticsOfNormLayersStayFp32AndFollowSmallChanges) {
  constexpr double kMomentum = 0.001;
  constexpr int kSteps = 200;
  for (const bool cast : {false, true}) {
    auto job = MakeJob({absl::StrCat(GetParam(), ".enabled=true"),
                        absl::StrCat(GetParam(), ".cast_buffers=", cast ? "true" : "false"),
                        "fp16.initial_scale_power=4"});
    ASSERT_TRUE(job.ok()) << job.status();
    torch::nn::BatchNorm1d batch(torch::nn::BatchNorm1dOptions(3).momentum(kMomentum));
    auto engine = Engine::Create(**job, *batch);
    ASSERT_TRUE(engine.ok()) << engine.status();
    const at::ScalarType type = batch->weight.scalar_type();
    EXPECT_EQ(type, std::string(GetParam()) == "bf16" ? at::kBFloat16 : at::kHalf);
    EXPECT_EQ(batch->running_mean.scalar_type(), cast ? type : at::kFloat);
    EXPECT_EQ(batch->running_var.scalar_type(), cast ? type : at::kFloat);
    const at::Tensor x = at::arange(1, 13, at::kFloat).view({4, 3}).to(type);
    const at::Tensor weight = batch->weight.detach().clone();
    Inputs inputs;
    for (int step = 0; step < kSteps; ++step) {
      const auto report = (*engine)->Step(inputs, [&](const at::Tensor&) {
        return Loss(batch(x).mul(x).square().sum(at::kFloat), 4);
      });
      ASSERT_TRUE(report.ok()) << report.status();
    }
    EXPECT_FALSE(batch->weight.equal(weight)) << "its gradient comes through";
    const at::Tensor exact = x.to(at::kDouble).mean(0) * (1 - std::pow(1 - kMomentum, kSteps));
    EXPECT_EQ(at::allclose(batch->running_mean.to(at::kDouble), exact, 1e-4), !cast)
        << batch->running_mean << " and not " << exact;
  }
}

TEST_F(PrecisionTest, AFixedLossScaleOfTheConfigurationHoldsWhateverACheckpointHad) {
  auto job = MakeJob({"fp16.enabled=true", "fp16.loss_scale=8"});
  ASSERT_TRUE(job.ok()) << job.status();
  Net net;
  auto engine = Engine::Create(**job, net);
  ASSERT_TRUE(engine.ok()) << engine.status();
  (*engine)->state().progress.loss_scale.scale = 128;  // A restore puts it so.
  Inputs inputs;
  const auto report = (*engine)->Step(inputs, [&](const at::Tensor& x) { return net.Loss(x); });
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->loss_scale, 8);
}

TEST_F(PrecisionTest, AnOverflowSkipsTheStepHalvesTheScaleAndIsNamed) {
  auto job = MakeJob({"fp16.enabled=true", "fp16.hysteresis=1", "fp16.loss_scale_window=2"});
  ASSERT_TRUE(job.ok()) << job.status();
  Net net;
  auto engine = Engine::Create(**job, net);
  ASSERT_TRUE(engine.ok()) << engine.status();
  Inputs inputs;
  const auto step = [&] {
    auto report = (*engine)->Step(inputs, [&](const at::Tensor& x) { return net.Loss(x); });
    EXPECT_TRUE(report.ok()) << report.status();
    return report.value_or(StepReport{});
  };
  net.gain = 3;  // Gradients of tens: times 65,536 beyond fp16's 65,504.
  const at::Tensor before = net.near.detach().clone();
  ::testing::internal::CaptureStderr();
  const StepReport skipped = step();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::AllOf(HasSubstr("near"), HasSubstr("loss scale 65536, next 32768")));
  EXPECT_TRUE(skipped.skipped);
  EXPECT_TRUE(net.near.equal(before));
  EXPECT_EQ((*engine)->state().progress.updates, 0);
  int tries = 0;
  while (step().skipped) {
    ASSERT_LT(++tries, 20);
  }
  const double settled = (*engine)->state().progress.loss_scale.scale;
  EXPECT_LT(settled, 32768);
  net.gain = 0.01;
  step();
  step();
  EXPECT_GT((*engine)->state().progress.loss_scale.scale, settled)
      << "the third good step doubles it";
}

TEST_F(PrecisionTest, AnOverflowAtTheSmallestScaleEndsTheRun) {
  auto job = MakeJob({"fp16.enabled=true", "fp16.initial_scale_power=0", "fp16.hysteresis=1"});
  ASSERT_TRUE(job.ok()) << job.status();
  Net net;
  net.gain = 1e4;
  auto engine = Engine::Create(**job, net);
  ASSERT_TRUE(engine.ok()) << engine.status();
  Inputs inputs;
  const auto report = (*engine)->Step(inputs, [&](const at::Tensor& x) { return net.Loss(x); });
  EXPECT_EQ(report.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(report.status().message()),
              ::testing::AllOf(HasSubstr("near"), HasSubstr("bf16.enabled")));
}

TEST_F(PrecisionTest, ABf16ModelNeedsBf16Enabled) {
  auto job = MakeJob({});
  ASSERT_TRUE(job.ok()) << job.status();
  Net net;
  net.to(at::kBFloat16);
  const auto engine = Engine::Create(**job, net);
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(engine.status().message()), HasSubstr("bf16.enabled"));
}

}  // namespace
}  // namespace dtrain::engine_precision_test
