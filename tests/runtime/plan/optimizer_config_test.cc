// optimizer.*: types, their parameters and defaults, parameter groups.
#include "dtrain/optimizer_config.h"

#include "absl/strings/str_cat.h"
#include "dtrain/config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/plan/memory/memory_plan.h"
#include "runtime/plan/optimizer/lr_schedule.h"

namespace dtrain::optimizer_config_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::StatusOr<Config> Parse(const std::string& optimizer, const std::string& more = "") {
  return Config::Parse(
      absl::StrCat(R"({"train_batch_size": 8, "optimizer": )", optimizer, more, "}"), "run.json",
      {}, 1);
}

OptimizerConfig Of(const std::string& optimizer, const std::string& more = "") {
  const auto config = Parse(optimizer, more);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? config->optimizer() : OptimizerConfig{};
}

std::string ErrorOf(const std::string& optimizer, const std::string& more = "") {
  return std::string(Parse(optimizer, more).status().message());
}

TEST(OptimizerConfigTest, EachTypeHasItsDefaultsAndStates) {
  const OptimizerConfig adam = Of(R"({"type": "adam"})");
  EXPECT_EQ(adam.name(), "AdamW") << "as DeepSpeed";
  EXPECT_THAT(adam.state_slots(), ElementsAre("exp_avg", "exp_avg_sq"));
  EXPECT_EQ(Of(R"({"type": "Adam", "params": {"adam_w_mode": false}})").name(), "Adam");

  const OptimizerConfig sgd = Of(R"({"type": "sgd"})");
  EXPECT_EQ(sgd.name(), "SGD");
  EXPECT_EQ(sgd.lr, 1e-3);
  EXPECT_THAT(sgd.state_slots(), IsEmpty());
  EXPECT_THAT(Of(R"({"type": "SGD", "params": {"momentum": 0.9}})").state_slots(),
              ElementsAre("momentum_buffer"));

  EXPECT_THAT(Of(R"({"type": "Lion"})").state_slots(), ElementsAre("exp_avg"));

  const OptimizerConfig lamb = Of(R"({"type": "Lamb", "params": {"max_coeff": 5}})");
  EXPECT_EQ(lamb.max_coeff, 5);
  EXPECT_EQ(lamb.min_coeff, 0.01);

  const OptimizerConfig adagrad = Of(R"({"type": "Adagrad", "params": {"lr": "auto"}})");
  EXPECT_EQ(adagrad.lr, 1e-2);
  EXPECT_EQ(adagrad.eps, 1e-10);
  EXPECT_THAT(adagrad.state_slots(), ElementsAre("sum"));

  const OptimizerConfig muon = Of(R"({"type": "Muon"})");
  EXPECT_EQ(muon.lr, 0.02);
  EXPECT_EQ(muon.adam_lr, 3e-4);
  EXPECT_EQ(muon.momentum, 0.95);
  EXPECT_EQ(muon.beta2, 0.95);
  EXPECT_EQ(muon.eps, 1e-10);
  const OptimizerConfig both = Of(R"({"type": "Muon", "params": {"lr": 0.5, "adam_lr": 0.25}})");
  EXPECT_EQ(both.lr, 0.5);
  EXPECT_EQ(both.adam_lr, 0.25);
}

TEST(OptimizerConfigTest, EveryKeyOfATypeIsTakenAtItsValue) {
  const OptimizerConfig adam = Of(R"({"type": "AdamW", "skip_unused_parameters": true,
      "no_weight_decay": ["a"], "params": {"lr": 0.25, "betas": [0.5, 0.75], "eps": 0.125,
                                           "weight_decay": 2, "bias_correction": false}})");
  EXPECT_EQ(adam.lr, 0.25);
  EXPECT_EQ(adam.beta1, 0.5);
  EXPECT_EQ(adam.beta2, 0.75);
  EXPECT_EQ(adam.eps, 0.125);
  EXPECT_EQ(adam.weight_decay, 2);
  EXPECT_FALSE(adam.bias_correction);
  EXPECT_TRUE(adam.skip_unused);
  EXPECT_THAT(adam.no_weight_decay, ElementsAre("a"));
  EXPECT_TRUE(Of("{}").bias_correction);
  EXPECT_FALSE(Of("{}").skip_unused);
  const OptimizerConfig sgd = Of(R"({"type": "SGD", "params": {"momentum": 0.5,
      "dampening": 0.25, "weight_decay": 0.125}})");
  EXPECT_EQ(sgd.momentum, 0.5);
  EXPECT_EQ(sgd.dampening, 0.25);
  EXPECT_EQ(sgd.weight_decay, 0.125);
  EXPECT_FALSE(sgd.nesterov);
  EXPECT_TRUE(Of(R"({"type": "SGD", "params": {"momentum": 0.5, "nesterov": true}})").nesterov);
  const OptimizerConfig lamb = Of(R"({"type": "Lamb", "params": {"max_coeff": 0.5,
      "min_coeff": 0.25, "bias_correction": false}})");
  EXPECT_EQ(lamb.max_coeff, 0.5);
  EXPECT_EQ(lamb.min_coeff, 0.25);
  EXPECT_FALSE(lamb.bias_correction);
  const OptimizerConfig adagrad = Of(R"({"type": "Adagrad", "params": {"lr_decay": 0.5,
      "initial_accumulator_value": 0.25, "eps": 0.125}})");
  EXPECT_EQ(adagrad.lr_decay, 0.5);
  EXPECT_EQ(adagrad.initial_accumulator_value, 0.25);
  EXPECT_EQ(adagrad.eps, 0.125);
  const OptimizerConfig muon = Of(R"({"type": "Muon", "params": {"lr": 0.5, "momentum": 0.25,
      "muon_lr": 0.125}})");
  EXPECT_EQ(muon.lr, 0.125) << "the matrices' own";
  EXPECT_EQ(muon.adam_lr, 0.5);
  EXPECT_EQ(muon.momentum, 0.25);
}

TEST(OptimizerConfigTest, NearestNamesAreThoseThatAPatternMissesByTheFewestLetters) {
  const std::vector<std::string> names = {"wte.weight",    "h.0.ln_1.weight", "h.0.ln_1.bias",
                                          "h.0.attn.bias", "h.1.ln_1.bias",   "h.1.attn.bias"};
  EXPECT_THAT(NearestNames("*.bais", names),
              ElementsAre("h.0.ln_1.bias", "h.0.attn.bias", "h.1.ln_1.bias"));
  EXPECT_THAT(NearestNames("wte.wieght", names), ElementsAre("wte.weight"));
  EXPECT_THAT(NearestNames("h.0.lm_*.weight", names), ElementsAre("h.0.ln_1.weight"));
  EXPECT_THAT(NearestNames("h.1.*.bia", names, 1), ElementsAre("h.1.ln_1.bias"));
  EXPECT_THAT(NearestNames("x", {}), IsEmpty());
  EXPECT_FALSE(NearestNames(std::string(100000, 'x'), names).empty()) << "in bounded time";
}

TEST(OptimizerConfigTest, MuonTakesHiddenMatricesAlone) {
  const OptimizerConfig muon = Of(R"({"type": "Muon"})");
  EXPECT_TRUE(muon.SettingsFor("layers.0.mlp.up.weight", {4, 8}).orthogonal);
  EXPECT_EQ(muon.SettingsFor("layers.0.mlp.up.weight", {4, 8}).lr, 0.02);
  for (const char* const other :
       {"token_embedding.weight", "model.EMBED.weight", "lm_head.weight"}) {
    EXPECT_FALSE(muon.SettingsFor(other, {4, 8}).orthogonal) << other;
    EXPECT_EQ(muon.SettingsFor(other, {4, 8}).lr, 3e-4) << other;
  }
  EXPECT_FALSE(muon.SettingsFor("layers.0.norm.weight", {8}).orthogonal);
}

TEST(OptimizerConfigTest, EachSettingComesFromTheFirstGroupThatGivesIt) {
  const OptimizerConfig config = Of(R"({
    "params": {"lr": 0.1, "weight_decay": 0.5}, "no_weight_decay": ["*.bias", "*norm*"],
    "param_groups": [{"params": "head.*", "lr": 0.01},
                     {"params": ["head.norm", "tail.*"], "lr": 7, "weight_decay": 0.25,
                      "betas": [0.5, 0.75], "eps": 1e-3}]})");
  const auto settings = [&](const char* name) { return config.SettingsFor(name, {2, 2}); };
  EXPECT_EQ(settings("body.weight"), (ParamSettings{0.1, 0.5, 0.9, 0.999, 1e-8}));
  EXPECT_EQ(settings("body.bias"), (ParamSettings{0.1, 0, 0.9, 0.999, 1e-8}));
  EXPECT_EQ(settings("head.weight"), (ParamSettings{0.01, 0.5, 0.9, 0.999, 1e-8}));
  EXPECT_EQ(settings("head.norm"), (ParamSettings{0.01, 0.25, 0.5, 0.75, 1e-3}));
  EXPECT_EQ(settings("tail.bias"), (ParamSettings{7, 0.25, 0.5, 0.75, 1e-3}))
      << "a group is more exact than the short form";
}

TEST(OptimizerConfigTest, AGroupMayBeForTheParametersOfOneEngine) {
  const OptimizerConfig config = Of(R"({
    "params": {"lr": 0.1},
    "param_groups": [{"engine": "teacher", "params": "head.*", "lr": 0.01},
                     {"params": "*.weight", "lr": 0.02}]})");
  EXPECT_EQ(config.SettingsFor("head.weight", {2}, "teacher").lr, 0.01);
  EXPECT_EQ(config.SettingsFor("head.weight", {2}, "student").lr, 0.02);
  EXPECT_EQ(config.SettingsFor("head.weight", {2}).lr, 0.02);
  EXPECT_EQ(config.SettingsFor("head.bias", {2}, "teacher").lr, 0.01);
  EXPECT_EQ(config.SettingsFor("head.bias", {2}, "student").lr, 0.1);
}

TEST(OptimizerConfigTest, AnEngineMayHaveSettingsOfItsOwn) {
  const auto config = Config::Parse(
      R"({"train_batch_size": 4, "gradient_clipping": 2, "engines": {
            "generator": {"lr": 2e-4, "betas": [0.5, 0.9], "gradient_clipping": 0,
                          "gradient_accumulation_steps": 3,
                          "param_groups": [{"params": "*.bias", "weight_decay": 0}]},
            "critic": {"eps": 1e-6, "weight_decay": 0.1}}})",
      "run.json", {"engines.critic.lr=0.5"}, 1);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->engine_names(), (std::vector<std::string>{"critic", "generator"}));
  const EngineSettings generator = config->engine_settings("generator");
  EXPECT_EQ(generator.lr, 2e-4);
  EXPECT_EQ(generator.betas, std::pair(0.5, 0.9));
  EXPECT_EQ(generator.gradient_clipping, 0.0);
  EXPECT_EQ(generator.gradient_accumulation_steps, 3);
  EXPECT_FALSE(generator.eps.has_value());
  ASSERT_EQ(generator.groups.size(), 1U);
  EXPECT_EQ(generator.groups[0].weight_decay, 0.0);
  const EngineSettings critic = config->engine_settings("critic");
  EXPECT_EQ(critic.lr, 0.5) << "by --set";
  EXPECT_EQ(critic.eps, 1e-6);
  EXPECT_FALSE(config->engine_settings("other").lr.has_value());
  EXPECT_EQ(config->gradient_clipping(), 2) << "of the others";
  // Groups of both, the first one's before; else what the first gives.
  const EngineSettings merged =
      Merged(generator, {.lr = 7, .eps = 8, .groups = {{.params = {"a"}}}});
  EXPECT_EQ(merged.lr, 2e-4);
  EXPECT_EQ(merged.eps, 8.0);
  ASSERT_EQ(merged.groups.size(), 2U);
  EXPECT_EQ(merged.groups[1].params, std::vector<std::string>{"a"});
  // Runs that train otherwise do not continue each other.
  const auto other = Config::Parse(R"({"train_batch_size": 4})", "run.json", {}, 1);
  EXPECT_NE(config->identity_hash(), other->identity_hash());
}

TEST(OptimizerConfigTest, MistakesInAnEnginesSettingsAreNamed) {
  const auto said = [](const std::string& engines, const std::string& more = "") {
    const auto config = Config::Parse(
        R"({"train_batch_size": 4, "engines": )" + engines + more + "}", "run.json", {}, 1);
    EXPECT_TRUE(absl::IsInvalidArgument(config.status())) << config.status();
    return std::string(config.status().message());
  };
  EXPECT_THAT(said(R"({"g": {"lr": -1}})"), HasSubstr("engines.g.lr is -1; want a number, 0 or"));
  EXPECT_THAT(
      said(R"({"g": {"rate": 1}})"),
      HasSubstr("engines.g.rate is not a setting of an engine; with this optimizer allowed: "
                "lr, weight_decay, betas, eps, gradient_clipping"));
  EXPECT_THAT(said(R"({"g": {"betas": [0.5, 0.5]}})", R"(, "optimizer": {"type": "SGD"})"),
              HasSubstr("engines.g.betas is not a setting"));
  EXPECT_THAT(said(R"({"g": 3})"), HasSubstr("engines.g is 3; want an object"));
  EXPECT_THAT(said(R"({"g": {"gradient_accumulation_steps": 0}})"),
              HasSubstr("engines.g.gradient_accumulation_steps is 0"));
  EXPECT_THAT(said(R"({"g": {"param_groups": [{"params": "a", "engine": "h"}]}})"),
              HasSubstr("engines.g.param_groups[0] has an \"engine\""));
  EXPECT_THAT(said(R"({"g": {"lr": 1}})",
                   R"(, "optimizer": {"params": {"lr": 0}}, "scheduler": {"type": "WarmupLR"})"),
              HasSubstr("optimizer.params.lr, which is 0"));
}

TEST(OptimizerConfigTest, MistakesAreNamed) {
  EXPECT_EQ(
      ErrorOf(R"({"type": "SGD", "params": {"eps": 1e-6}})"),
      "run.json:1: optimizer.params.eps does not belong to SGD, which takes lr, weight_decay, "
      "momentum, dampening, nesterov");
  EXPECT_EQ(ErrorOf(R"({"type": "SGD", "params": {"nesterov": true}})"),
            "run.json:1: optimizer.params.nesterov needs momentum above 0 and dampening 0; got 0 "
            "and 0");
  EXPECT_THAT(
      ErrorOf(
          R"({"type": "SGD", "params": {"nesterov": true, "momentum": 0.9, "dampening": 0.5}})"),
      HasSubstr("dampening 0; got 0.9 and 0.5"));
  EXPECT_EQ(ErrorOf(R"({"type": "Lamb", "params": {"min_coeff": 3, "max_coeff": 2}})"),
            "run.json:1: optimizer.params.min_coeff 3 is above max_coeff 2");
  EXPECT_THAT(ErrorOf(R"({"param_groups": [{"params": ["a"]}, {"lr": 1}]})"),
              HasSubstr("optimizer.param_groups[1] has no \"params\""));
  EXPECT_THAT(ErrorOf(R"({"param_groups": [{"params": [], "lr": 1}]})"),
              HasSubstr("optimizer.param_groups[0].params is []"));
  EXPECT_THAT(ErrorOf(R"({"param_groups": [{"params": "a", "lr": -1}]})"),
              HasSubstr("optimizer.param_groups[0].lr is -1; want a number, 0 or more"));
  EXPECT_THAT(ErrorOf(R"({"param_groups": [{"params": "a", "lrr": 1}]})"),
              HasSubstr("optimizer.param_groups[0].lrr is not a setting of a parameter group; "
                        "this optimizer takes params, engine, lr, weight_decay, betas, eps"));
  EXPECT_THAT(ErrorOf(R"({"type": "SGD", "param_groups": [{"params": "a", "betas": [0.5, 0.5]}]})"),
              HasSubstr("this optimizer takes params, engine, lr, weight_decay"));
  EXPECT_THAT(ErrorOf(R"({"param_groups": [{"params": "a", "engine": ""}]})"),
              HasSubstr("optimizer.param_groups[0].engine is \"\"; want the name of an engine"));
  EXPECT_THAT(ErrorOf(R"({"param_groups": [{"params": "a", "engine": 3}]})"),
              HasSubstr("optimizer.param_groups[0].engine is 3"));
  EXPECT_THAT(ErrorOf(R"({"param_groups": [3]})"), HasSubstr("want a list of objects"));
  EXPECT_THAT(ErrorOf(R"({"params": {"lr": 0}, "param_groups": [{"params": "a", "lr": 1}]})",
                      R"(, "scheduler": {"type": "WarmupLR"})"),
              HasSubstr("optimizer.params.lr, which is 0"));
  EXPECT_THAT(ErrorOf("{}", R"(, "bf16": {"bf16_optimizer_states": true})"),
              HasSubstr("bf16.bf16_optimizer_states needs bf16.enabled"));
  EXPECT_THAT(ErrorOf("{}", R"(, "bf16": {"enabled": true, "stochastic_rounding": true})"),
              HasSubstr("set bf16.bf16_optimizer_states too"));
  EXPECT_THAT(ErrorOf(R"({"type": "Lion"})", R"(, "bf16": {"enabled": true,
                "bf16_optimizer_states": true, "stochastic_rounding": true})"),
              HasSubstr("bf16.stochastic_rounding with optimizer.type Lion is not supported; "
                        "allowed: AdamW, Adam"));
  EXPECT_THAT(ErrorOf("{}", R"(, "prescale_gradients": true, "gradient_predivide_factor": 2)"),
              HasSubstr("exclude each other"));
}

TEST(OptimizerConfigTest, OffloadNeedsItsStageAndItsFolder) {
  const auto error = [](const char* optimizer, const char* zero) {
    return ErrorOf(optimizer, absl::StrCat(R"(, "zero_optimization": )", zero));
  };
  EXPECT_EQ(error("{}", R"({"offload_optimizer": {"device": "cpu"}})"),
            "run.json:1: zero_optimization.offload_optimizer.device \"cpu\" needs "
            "zero_optimization.stage 1, 2 or 3; got 0");
  EXPECT_THAT(error("{}", R"({"stage": 2, "offload_optimizer": {"device": "nvme"}})"),
              HasSubstr("needs zero_optimization.offload_optimizer.nvme_path"));
  EXPECT_THAT(error("{}", R"({"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 2}})"),
              HasSubstr("offload_optimizer.ratio is 2; want a number from 0 to 1"));
  EXPECT_EQ(error(R"({"type": "Muon"})",
                  R"({"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.5}})"),
            "");
  EXPECT_EQ(error("{}", R"({"stage": 3, "offload_optimizer": {"device": "cpu"}})"), "");
}

TEST(OptimizerConfigTest, TheMemoryPlanPutsOffloadedStatesElsewhere) {
  plan::MemoryRequest request;
  request.model.parameters = 64e6;
  request.precision = PrecisionConfig::Kind::kBFloat16;
  request.zero_stage = 1;
  request.world_size = 2;
  const plan::MemoryPlan near = PlanMemory(request);
  request.offload_buffers = 4;
  const plan::MemoryPlan far = PlanMemory(request);
  EXPECT_EQ(far.offloaded, near.moments + near.master);
  EXPECT_EQ(far.states(), near.states() - far.offloaded);
  EXPECT_EQ(far.buckets - near.buckets, 4.0 * (1 << 20) * 12);
  request.offload_ratio = 0.25;
  const plan::MemoryPlan quarter = PlanMemory(request);
  EXPECT_EQ(quarter.offloaded, far.offloaded / 4);
  EXPECT_EQ(quarter.states(), near.states() - far.offloaded / 4);
}

TEST(OptimizerConfigTest, TheMemoryPlanPutsOffloadedStatesOfAGpuIntoTheHostsMemory) {
  plan::MemoryRequest request;
  request.model.parameters = 64e6;
  request.precision = PrecisionConfig::Kind::kBFloat16;
  request.zero_stage = 1;
  request.world_size = 2;
  request.states_on_host = true;
  const plan::MemoryPlan near = PlanMemory(request);
  EXPECT_EQ(near.host, 0);
  request.offload_buffers = 2;
  request.offload_ratio = 0.25;
  const plan::MemoryPlan memory = PlanMemory(request);
  const double states = near.moments + near.master;
  EXPECT_EQ(memory.offloaded, states) << "all, whatever the ratio";
  EXPECT_EQ(memory.states(), near.states() - states);
  EXPECT_EQ(memory.buckets, near.buckets) << "buffers are the host's";
  EXPECT_EQ(memory.host, states + 3.0 * (1 << 20) * 6) << "three pinned ones, at least";
  request.offload_to_file = true;
  EXPECT_EQ(PlanMemory(request).host, 0.75 * states + 3.0 * (1 << 20) * 6 + 2.0 * (1 << 20) * 12);
}

TEST(OptimizerConfigTest, ABf16SecondMomentThatCannotShrinkIsWarnedOf) {
  const char* const states = R"(, "bf16": {"enabled": true, "bf16_optimizer_states": true})";
  const auto slow = Parse("{}", states);
  ASSERT_TRUE(slow.ok()) << slow.status();
  ASSERT_EQ(slow->warnings().size(), 1U);
  EXPECT_THAT(slow->warnings()[0], HasSubstr("beta2 0.999"));
  EXPECT_THAT(slow->warnings()[0], HasSubstr("or bf16.stochastic_rounding"));
  EXPECT_THAT(Parse(R"({"params": {"betas": [0.9, 0.95]}})", states)->warnings(), IsEmpty());
  const auto by_chance = Parse("{}", R"(, "bf16": {"enabled": true, "bf16_optimizer_states": true,
      "stochastic_rounding": true})");
  ASSERT_TRUE(by_chance.ok()) << by_chance.status();
  EXPECT_THAT(by_chance->warnings(), IsEmpty());
}

TEST(OptimizerConfigTest, ARunDirectorysValuesAreReadBackAlike) {
  for (const char* const optimizer :
       {R"({"type": "Muon", "params": {"lr": 0.1}, "param_groups": [{"params": "a", "lr": 1}]})",
        R"({"type": "Adagrad"})", R"({"type": "SGD", "params": {"momentum": 0.9}})"}) {
    const auto config = Parse(optimizer);
    ASSERT_TRUE(config.ok()) << config.status();
    const Json saved = config->values_in_force();
    const auto again = Config::Parse(DumpJson(saved), "config.json", {}, 1);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(Parse(optimizer)->IdentityDifference(saved), std::nullopt);
    EXPECT_EQ(again->optimizer().name(), config->optimizer().name());
    EXPECT_EQ(again->optimizer().lr, config->optimizer().lr);
    EXPECT_EQ(again->optimizer().adam_lr, config->optimizer().adam_lr);
  }
}

TEST(OptimizerConfigTest, SchedulesScaleAGroupsRate) {
  SchedulerConfig cosine{.kind = SchedulerConfig::Kind::kWarmupCosine,
                         .base_lr = 0.1,
                         .cos_min_ratio = 0.1,
                         .warmup_num_steps = 2,
                         .total_num_steps = 10};
  for (const int64_t step : {0, 1, 5, 10}) {
    EXPECT_DOUBLE_EQ(plan::GroupLrAt(cosine, 0.1, 0.3, step), 3 * plan::LrAt(cosine, step));
  }
  const SchedulerConfig warmup{.kind = SchedulerConfig::Kind::kWarmup,
                               .base_lr = 0.1,
                               .warmup_max_lr = 0.4,
                               .warmup_num_steps = 2};
  EXPECT_DOUBLE_EQ(plan::GroupLrAt(warmup, 0.1, 0.05, 9), 0.2);
  EXPECT_EQ(plan::GroupLrAt({.base_lr = 0}, 0, 0.3, 4), 0.3) << "without a schedule";
}

TEST(OptimizerConfigTest, TheMemoryPlanCountsItsStates) {
  EXPECT_EQ(plan::MomentBytes(Of("{}")), 8);
  EXPECT_EQ(plan::MomentBytes(Of(R"({"type": "Lion"})")), 4);
  EXPECT_EQ(plan::MomentBytes(Of(R"({"type": "SGD"})")), 0);
  EXPECT_EQ(
      plan::MomentBytes(Of("{}", R"(, "bf16": {"enabled": true, "bf16_optimizer_states": true})")),
      4);
  plan::MemoryRequest request;
  request.model.parameters = 10;
  request.moment_bytes = 4;
  EXPECT_EQ(plan::PlanMemory(request).moments, 40);
}

}  // namespace
}  // namespace dtrain::optimizer_config_test
