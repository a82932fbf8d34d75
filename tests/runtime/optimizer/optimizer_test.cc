// One rank: every optimizer against torch's own, or against torch operations, for many steps.
#include "dtrain/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "ATen/ATen.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "dtrain/checkpointer.h"
#include "dtrain/engine.h"
#include "runtime/optimizer/engine_state.h"
#include "runtime/optimizer/newton_schulz.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "torch/nn/module.h"
#include "torch/optim/adagrad.h"
#include "torch/optim/adam.h"
#include "torch/optim/adamw.h"
#include "torch/optim/sgd.h"

namespace dtrain::optimizer_test {
namespace {

using ::testing::HasSubstr;

constexpr int kSteps = 25;

class Net : public torch::nn::Module {
 public:
  Net() {
    at::manual_seed(11);
    embed = register_parameter("embed", at::randn({6, 5}) * 0.5);
    up = register_parameter("up", at::randn({12, 5}) * 0.5);
    down = register_parameter("down", at::randn({3, 12}) * 0.5);
    bias = register_parameter("bias", at::randn({3}) * 0.5);
  }
  at::Tensor Loss(const at::Tensor& x) {
    const at::Tensor h = at::tanh(x.to(embed.scalar_type()).matmul(embed).matmul(up.t()));
    return (h.matmul(down.t()) + bias).square().sum(at::kFloat);
  }
  at::Tensor embed, up, down, bias;
};

at::Tensor Input(int step) {
  return at::sin(at::arange(0, 24, at::kFloat).reshape({4, 6}) * 1.3 + static_cast<double>(step));
}

struct Inputs {
  int calls = 0;
  absl::StatusOr<at::Tensor> Next() { return Input(++calls); }
};

class OptimizerTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Job>> MakeJob(const std::string& optimizer,
                                               const std::vector<std::string>& more = {}) {
    std::vector<std::string> all = {"train_micro_batch_size_per_gpu=1", "gradient_clipping=0"};
    if (!optimizer.empty()) {
      all.push_back("optimizer=" + optimizer);
    }
    all.insert(all.end(), more.begin(), more.end());
    return testing::MakeTestJob({.run_dir = folder_.path(), .overrides = all});
  }
  // Why an engine is refused; "": it is not.
  std::string WhyNot(const std::string& optimizer, Net& net,
                     const std::vector<std::string>& more = {}) {
    auto job = MakeJob(optimizer, more);
    EXPECT_TRUE(job.ok()) << job.status();
    return job.ok() ? std::string(Engine::Create(**job, net).status().message()) : "no job";
  }
  // `reference` is stepped beside the engine; both must have the same parameters after each step.
  void ExpectSame(const std::string& optimizer, Net& reference,
                  const std::function<void(int step)>& step_reference,
                  const EngineOptions& options = {}, const std::vector<std::string>& more = {}) {
    auto job = MakeJob(optimizer, more);
    ASSERT_TRUE(job.ok()) << job.status();
    Net net;
    auto engine = Engine::Create(**job, net, options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    Inputs inputs;
    for (int step = 1; step <= kSteps; ++step) {
      const auto report = (*engine)->Step(inputs, [&](const at::Tensor& x) { return net.Loss(x); });
      ASSERT_TRUE(report.ok()) << report.status();
      reference.zero_grad();
      reference.Loss(Input(step)).backward();
      step_reference(step);
      for (const auto& item : reference.named_parameters()) {
        const at::Tensor ours = net.named_parameters()[item.key()];
        // A few roundings a step, that training carries along.
        ASSERT_TRUE(at::allclose(ours, item.value(), 2e-5, 2e-6))
            << optimizer << ", step " << step << ", " << item.key() << ": "
            << (ours - item.value()).abs().max().item<double>();
      }
    }
    Net untouched;
    EXPECT_FALSE(at::allclose(net.up, untouched.up, 1e-3, 1e-3)) << "nothing was trained";
  }
  testing::TempFolder folder_;
};

TEST_F(OptimizerTest, AdamWIsTorchs) {
  Net reference;
  torch::optim::AdamW torch(
      reference.parameters(),
      torch::optim::AdamWOptions(0.01).betas({0.8, 0.95}).eps(1e-6).weight_decay(0.1));
  ExpectSame(R"({"type":"AdamW","params":{"lr":0.01,"betas":[0.8,0.95],"eps":1e-6,)"
             R"("weight_decay":0.1}})",
             reference, [&](int) { torch.step(); });
}

TEST_F(OptimizerTest, AdamWithL2IsTorchs) {
  Net reference;
  torch::optim::Adam torch(reference.parameters(),
                           torch::optim::AdamOptions(0.01).eps(1e-6).weight_decay(0.3));
  ExpectSame(R"({"type":"Adam","params":{"adam_w_mode":false,"lr":0.01,"eps":1e-6,)"
             R"("weight_decay":0.3}})",
             reference, [&](int) { torch.step(); });
}

TEST_F(OptimizerTest, SgdIsTorchsInAllItsForms) {
  const struct {
    const char* params;
    torch::optim::SGDOptions options;
  } forms[] = {
      {R"("weight_decay":0.1)", torch::optim::SGDOptions(0.003).weight_decay(0.1)},
      {R"("momentum":0.9,"weight_decay":0.1)",
       torch::optim::SGDOptions(0.003).momentum(0.9).weight_decay(0.1)},
      {R"("momentum":0.9,"dampening":0.4)",
       torch::optim::SGDOptions(0.003).momentum(0.9).dampening(0.4)},
      {R"("momentum":0.8,"nesterov":true,"weight_decay":0.05)",
       torch::optim::SGDOptions(0.003).momentum(0.8).nesterov(true).weight_decay(0.05)},
  };
  for (const auto& form : forms) {
    Net reference;
    torch::optim::SGD torch(reference.parameters(), form.options);
    ExpectSame(absl::StrFormat(R"({"type":"SGD","params":{"lr":0.003,%s}})", form.params),
               reference, [&](int) { torch.step(); });
  }
}

TEST_F(OptimizerTest, AdagradIsTorchs) {
  Net reference;
  torch::optim::Adagrad torch(reference.parameters(), torch::optim::AdagradOptions(0.05)
                                                          .lr_decay(0.1)
                                                          .weight_decay(0.1)
                                                          .initial_accumulator_value(0.2)
                                                          .eps(1e-6));
  ExpectSame(R"({"type":"Adagrad","params":{"lr":0.05,"lr_decay":0.1,"weight_decay":0.1,)"
             R"("initial_accumulator_value":0.2,"eps":1e-6}})",
             reference, [&](int) { torch.step(); });
}

// State of a reference made of torch operations, by parameter.
struct Reference {
  explicit Reference(Net& net) : parameters(net.named_parameters()) {
    for (const auto& item : parameters) {
      first.push_back(at::zeros_like(item.value()));
      second.push_back(at::zeros_like(item.value()));
    }
  }
  void Each(const std::function<void(const std::string&, at::Tensor, at::Tensor, at::Tensor&,
                                     at::Tensor&)>& rule) {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto& item = parameters[i];
      rule(item.key(), item.value(), item.value().grad(), first[i], second[i]);
    }
  }
  torch::OrderedDict<std::string, at::Tensor> parameters;
  std::vector<at::Tensor> first, second;
};

TEST_F(OptimizerTest, LionFollowsItsPaper) {
  Net net;
  Reference reference(net);
  ExpectSame(R"({"type":"Lion","params":{"lr":0.003,"betas":[0.9,0.98],"weight_decay":0.2}})", net,
             [&](int) {
               reference.Each([](auto&, at::Tensor p, at::Tensor g, at::Tensor& m, at::Tensor&) {
                 const at::Tensor direction = (m * 0.9 + g * 0.1).sign();
                 p.mul_(1 - 0.003 * 0.2).sub_(direction, 0.003);
                 m = m * 0.98 + g * 0.02;
               });
             });
}

TEST_F(OptimizerTest, LambFollowsDeepSpeedsFusedLamb) {
  for (const bool corrected : {true, false}) {
    Net net;
    Reference reference(net);
    const std::string lamb = absl::StrCat(
        R"({"type":"Lamb","params":{"lr":0.02,"betas":[0.8,0.95],"eps":1e-6,"weight_decay":0.1,)"
        R"("max_coeff":0.9,"min_coeff":0.05)",
        corrected ? "" : R"(,"bias_correction":false)", "}}");
    ExpectSame(lamb, net, [&](int step) {
      reference.Each([&](auto&, at::Tensor p, at::Tensor g, at::Tensor& m, at::Tensor& v) {
        m = m * 0.8 + g * 0.2;
        v = v * 0.95 + g * g * 0.05;
        const at::Tensor update = m / (v.sqrt() + 1e-6) + p * 0.1;
        const double trust =
            std::clamp(p.norm().item<double>() / update.norm().item<double>(), 0.05, 0.9);
        const double size =
            corrected ? 0.02 * std::sqrt(1 - std::pow(0.95, step)) / (1 - std::pow(0.8, step))
                      : 0.02;
        p.sub_(update, size * trust);
      });
    });
  }
}

TEST_F(OptimizerTest, AdamWithoutBiasCorrectionTakesTheMomentsAsTheyAre) {
  for (const bool decoupled : {true, false}) {
    Net net;
    Reference reference(net);
    const std::string adam = absl::StrCat(
        R"({"type":"Adam","params":{"lr":0.002,"betas":[0.8,0.95],"eps":1e-4,"weight_decay":0.1,)"
        R"("bias_correction":false,"adam_w_mode":)",
        decoupled ? "true" : "false", "}}");
    ExpectSame(adam, net, [&](int) {
      reference.Each([&](auto&, at::Tensor p, at::Tensor g, at::Tensor& m, at::Tensor& v) {
        const at::Tensor with_decay = decoupled ? g : g + p * 0.1;
        m = m * 0.8 + with_decay * 0.2;
        v = v * 0.95 + with_decay * with_decay * 0.05;
        const at::Tensor update = m / (v.sqrt() + 1e-4) + (decoupled ? p * 0.1 : p * 0.0);
        p.sub_(update, 0.002);
      });
    });
  }
}

TEST_F(OptimizerTest, MuonFollowsDeepSpeeds) {
  Net net;
  Reference reference(net);
  ExpectSame(R"({"type":"Muon","params":{"muon_lr":0.01,"adam_lr":0.003,"momentum":0.9,)"
             R"("weight_decay":0.1,"eps":1e-6}})",
             net, [&](int step) {
               reference.Each([&](const std::string& name, at::Tensor p, at::Tensor g,
                                  at::Tensor& m, at::Tensor& v) {
                 if (name == "up" || name == "down") {
                   m = m + (g - m) * 0.1;
                   const at::Tensor update = g + (m - g) * 0.9;
                   p.mul_(1 - 0.01 * 0.1).sub_(NewtonSchulz(update), 0.01);
                   return;
                 }
                 m = m * 0.9 + g * 0.1;
                 v = v * 0.95 + g * g * 0.05;
                 const at::Tensor change = m / (1 - std::pow(0.9, step)) /
                                           ((v / (1 - std::pow(0.95, step))).sqrt() + 1e-6);
                 p.mul_(1 - 0.003 * 0.1).sub_(change, 0.003);
               });
             });
}

TEST_F(OptimizerTest, GroupsHaveRatesAndDecaysOfTheirOwn) {
  Net reference;
  using torch::optim::AdamWOptions;
  torch::optim::AdamW torch(
      std::vector<torch::optim::OptimizerParamGroup>{
          {{reference.embed}, std::make_unique<AdamWOptions>(AdamWOptions(0.01).weight_decay(0))},
          {{reference.up, reference.down},
           std::make_unique<AdamWOptions>(AdamWOptions(0.01).weight_decay(0.2))},
          {{reference.bias},
           std::make_unique<AdamWOptions>(
               AdamWOptions(0.03).betas({0.5, 0.9}).eps(1e-3).weight_decay(0.2))}},
      AdamWOptions(0.01));
  ExpectSame(R"({"params":{"lr":0.01,"weight_decay":0.2},"no_weight_decay":["emb*"],)"
             R"("param_groups":[{"params":["bias"],"lr":0.03,"betas":[0.5,0.9],"eps":1e-3}]})",
             reference, [&](int) { torch.step(); });
}

TEST_F(OptimizerTest, AGroupThatNamesNothingIsAnError) {
  Net net;
  constexpr char kRest[] =
      "(* stands for any text). A group for one of several engines gives its name: \"engine\": "
      "\"NAME\" (EngineOptions::name)";
  constexpr char kMisspelt[] = R"({"param_groups":[{"params":["up","*.biass"],"lr":1}]})";
  EXPECT_EQ(WhyNot(kMisspelt, net),
            absl::StrCat("optimizer.param_groups[0].params: \"*.biass\" names no trainable "
                         "parameter of the engine of ",
                         net.name(), "; nearest: bias ", kRest));
  auto job = MakeJob(kMisspelt);
  ASSERT_TRUE(job.ok()) << job.status();
  EngineOptions student;
  student.name = "student";
  EXPECT_EQ(std::string(Engine::Create(**job, net, student).status().message()),
            absl::StrCat("optimizer.param_groups[0].params: \"*.biass\" names no trainable "
                         "parameter of engine \"student\"; nearest: bias ",
                         kRest));
  net.bias.set_requires_grad(false);
  EXPECT_THAT(WhyNot(R"({"param_groups":[{"params":["bias"],"lr":1}]})", net),
              HasSubstr(", only frozen ones; nearest: "));
}

TEST_F(OptimizerTest, ADecayPatternThatNamesNothingIsAnError) {
  for (const char* const stage : {"zero_optimization.stage=0", "zero_optimization.stage=3"}) {
    Net net;
    EXPECT_EQ(WhyNot(R"({"no_weight_decay":["embed","*bais"]})", net, {stage}),
              "optimizer.no_weight_decay: \"*bais\" names no parameter of the model; nearest: bias "
              "(* stands for any text)");
    // Frozen parameters are not decayed, so a pattern that names one is right.
    Net partly;
    partly.bias.set_requires_grad(false);
    EXPECT_EQ(WhyNot(R"({"no_weight_decay":["embed","bias"]})", partly, {stage}), "");
  }
}

TEST_F(OptimizerTest, ElementsAreLimitedByValue) {
  Net reference;
  torch::optim::SGD torch(reference.parameters(), torch::optim::SGDOptions(0.01));
  ExpectSame(R"({"type":"SGD","params":{"lr":0.01}})", reference,
             [&](int) {
               for (const at::Tensor& parameter : reference.parameters()) {
                 parameter.mutable_grad().clamp_(-0.5, 0.5);
               }
               torch.step();
             },
             {}, {"gradient_clipping_value=0.5"});
}

TEST_F(OptimizerTest, DividingGradientsBeforeTheSumChangesNothing) {
  Net reference;
  torch::optim::SGD torch(reference.parameters(), torch::optim::SGDOptions(0.01));
  ExpectSame(R"({"type":"SGD","params":{"lr":0.01}})", reference, [&](int) { torch.step(); }, {},
             {"gradient_predivide_factor=64"});
}

// Signed steps with a memory of the last sign, a rule that no type gives.
class OwnSign final : public Optimizer {
 public:
  std::string name() const override { return "OwnSign"; }
  std::vector<std::string> states() const override { return {"last"}; }
  void Update(const ParameterPart& part) const override {
    for (size_t i = 0; i < part.weights.size(); ++i) {
      const float sign = part.gradient[i] > 0 ? 1 : -1;
      const auto lr = static_cast<float>(part.settings.lr);
      part.weights[i] -= lr * (sign + 0.5F * part.states[0][i]);
      part.states[0][i] = sign;
    }
  }
};

TEST_F(OptimizerTest, AProgramBringsItsOwn) {
  Net net;
  Reference reference(net);
  ExpectSame(R"({"params":{"lr":0.004}})", net,
             [&](int) {
               reference.Each([](auto&, at::Tensor p, at::Tensor g, at::Tensor& last, at::Tensor&) {
                 const at::Tensor sign = at::where(g > 0, at::ones_like(g), -at::ones_like(g));
                 p.sub_(sign + 0.5 * last, 0.004);
                 last = sign;
               });
             },
             {.optimizer = std::make_shared<OwnSign>()});
  auto job = MakeJob(R"({"type":"Lion"})");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(
      std::string(Engine::Create(**job, net, {.optimizer = std::make_shared<OwnSign>()})
                      .status()
                      .message()),
      HasSubstr("optimizer.type Lion is given and the program brings its own optimizer, OwnSign"));
}

TEST_F(OptimizerTest, StatesInBf16TrainNearlyTheSame) {
  const auto loss_after = [&](const char* states) {
    auto job = MakeJob(R"({"params":{"lr":0.01,"betas":[0.9,0.95]}})",
                       {"bf16.enabled=true", absl::StrCat("bf16.bf16_optimizer_states=", states)});
    EXPECT_TRUE(job.ok()) << job.status();
    Net net;
    auto engine = Engine::Create(**job, net);
    EXPECT_TRUE(engine.ok()) << engine.status();
    const auto type = (*engine)->state().optimizer.slots[0].tensor.scalar_type();
    EXPECT_EQ(type, std::string(states) == "true" ? at::kBFloat16 : at::kFloat);
    Inputs inputs;
    double loss = 0;
    for (int step = 0; step < kSteps; ++step) {
      loss = (*engine)->Step(inputs, [&](const at::Tensor& x) { return net.Loss(x); })->loss;
    }
    return loss;
  };
  const double wide = loss_after("false");
  const double narrow = loss_after("true");
  EXPECT_NE(narrow, wide);
  EXPECT_NEAR(narrow, wide, 0.05 * wide) << "8 bits of each state";
}

// The rounding depends on seed, step and place alone.
TEST_F(OptimizerTest, StatesRoundedByChanceFollowTheSeed) {
  const auto states_after = [&](std::vector<std::string> more, double& loss) {
    more.insert(more.end(), {"bf16.enabled=true", "bf16.bf16_optimizer_states=true"});
    auto job = MakeJob(R"({"params":{"lr":0.01,"betas":[0.9,0.95]}})", more);
    EXPECT_TRUE(job.ok()) << job.status();
    Net net;
    auto engine = Engine::Create(**job, net);
    EXPECT_TRUE(engine.ok()) << engine.status();
    Inputs inputs;
    for (int step = 0; step < kSteps; ++step) {
      loss = (*engine)->Step(inputs, [&](const at::Tensor& x) { return net.Loss(x); })->loss;
    }
    const auto& slots = (*engine)->state().optimizer.slots;
    return at::cat({slots[0].tensor, slots[1].tensor}).clone();
  };
  double nearest_loss = 0;
  double loss = 0;
  double other_loss = 0;
  const at::Tensor nearest = states_after({}, nearest_loss);
  const at::Tensor by_chance = states_after({"bf16.stochastic_rounding=true"}, loss);
  const at::Tensor again = states_after({"bf16.stochastic_rounding=true"}, loss);
  const at::Tensor other = states_after({"bf16.stochastic_rounding=true", "seed=7"}, other_loss);
  EXPECT_FALSE(by_chance.equal(nearest));
  EXPECT_TRUE(by_chance.equal(again));
  EXPECT_FALSE(by_chance.equal(other));
  EXPECT_NEAR(loss, nearest_loss, 0.05 * nearest_loss) << "8 bits of each state";
  EXPECT_NEAR(other_loss, nearest_loss, 0.05 * nearest_loss);
}

// A resumed run and one that was not interrupted have the same bits.
TEST_F(OptimizerTest, AResumedRunGoesOnToTheBit) {
  for (const char* const optimizer :
       {R"({"type":"AdamW"})", R"({"type":"SGD","params":{"momentum":0.9}})", R"({"type":"Lion"})",
        R"({"type":"Lamb"})", R"({"type":"Adagrad"})", R"({"type":"Muon"})"}) {
    for (const std::string states : {"fp32", "bf16", "by chance"}) {
      const bool narrow = states != "fp32";
      const bool by_chance = states == "by chance";
      const auto is = [&](const char* name) {
        return std::string(optimizer).find(name) != std::string::npos;
      };
      if ((narrow && (is("Lamb") || is("Muon"))) || (by_chance && !is("AdamW"))) {
        continue;
      }
      const testing::TempFolder folder;
      const auto train = [&](int steps, bool resume) {
        auto job = testing::MakeTestJob(
            {.run_dir = folder.path(),
             .overrides = {"train_micro_batch_size_per_gpu=1", "checkpoint.interval=3",
                           absl::StrCat("bf16.enabled=", narrow ? "true" : "false"),
                           absl::StrCat("bf16.bf16_optimizer_states=", narrow ? "true" : "false"),
                           absl::StrCat("bf16.stochastic_rounding=", by_chance ? "true" : "false"),
                           absl::StrCat("optimizer=", optimizer)}});
        EXPECT_TRUE(job.ok()) << job.status();
        Net net;
        auto engine = Engine::Create(**job, net);
        EXPECT_TRUE(engine.ok()) << engine.status();
        auto checkpoints = Checkpointer::Open(**job);
        EXPECT_TRUE(checkpoints.ok()) << checkpoints.status();
        (*checkpoints)->Track("engine", **engine);
        if (resume) {
          EXPECT_TRUE((*checkpoints)->RestoreLatest().ok());
          EXPECT_EQ((*engine)->step(), 3);
        }
        Inputs inputs{.calls = static_cast<int>((*engine)->step())};
        while ((*engine)->step() < steps) {
          const auto report =
              (*engine)->Step(inputs, [&](const at::Tensor& x) { return net.Loss(x); });
          EXPECT_TRUE(report.ok()) << report.status();
          if (!resume) {
            EXPECT_TRUE((*checkpoints)->MaybeSave((*engine)->step()).ok());
          }
        }
        return at::cat({net.embed.flatten(), net.up.flatten(), net.down.flatten(), net.bias})
            .detach()
            .to(at::kFloat)
            .clone();
      };
      const at::Tensor whole = train(5, false);
      EXPECT_TRUE(train(5, true).equal(whole)) << optimizer << ", states " << states;
    }
  }
}

TEST_F(OptimizerTest, ACheckpointOfAnotherOptimizerIsRefusedByBothNames) {
  const auto with = [&](const char* optimizer) -> absl::Status {
    auto job = MakeJob(optimizer, {"checkpoint.interval=1"});
    EXPECT_TRUE(job.ok()) << job.status();
    Net net;
    auto engine = Engine::Create(**job, net);
    EXPECT_TRUE(engine.ok()) << engine.status();
    auto checkpoints = Checkpointer::Open(**job);
    EXPECT_TRUE(checkpoints.ok()) << checkpoints.status();
    (*checkpoints)->Track("engine", **engine);
    if (const absl::Status restored = (*checkpoints)->RestoreLatest(); !restored.ok()) {
      return restored;
    }
    Inputs inputs;
    EXPECT_TRUE((*engine)->Step(inputs, [&](const at::Tensor& x) { return net.Loss(x); }).ok());
    return (*checkpoints)->MaybeSave((*engine)->step());
  };
  ASSERT_TRUE(with(R"({"type":"Lamb"})").ok());
  const absl::Status refused = with(R"({"type":"AdamW"})");
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("holds the states of optimizer Lamb, this run has AdamW"));
}

}  // namespace
}  // namespace dtrain::optimizer_test
