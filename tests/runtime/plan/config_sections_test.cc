// Sections of DeepSpeed's that are switched off, older spellings, sizes that follow the model, and
// where activations wait.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "dtrain/config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/plan/temp_folder.h"

namespace dtrain::config_sections_test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::SizeIs;

Config Parsed(const std::string& text) {
  absl::StatusOr<Config> config = Config::Parse(text, "run.json", {}, 1);
  EXPECT_TRUE(config.ok()) << config.status();
  return *std::move(config);
}

absl::Status Failure(const std::string& text) {
  return Config::Parse(text, "run.json", {}, 1).status();
}

TEST(ConfigSectionsTest, ASectionThatIsSwitchedOffIsAsAbsent) {
  EXPECT_THAT(Parsed(R"({"train_batch_size": 8, "amp": {"enabled": false, "opt_level": "O1"},
                         "curriculum_learning": {"enabled": false, "min_difficulty": 8},
                         "sparse_attention": {}, "comet": {"enabled": false}})")
                  .warnings(),
              SizeIs(0));
  EXPECT_THAT(Parsed(R"({"train_batch_size": 8, "comet": {"enabled": true}})").warnings(),
              Contains(HasSubstr("comet = {\"enabled\":true} has no effect")));
}

TEST(ConfigSectionsTest, OlderSwitchesBecomeTodaysChoices) {
  const Config config = Parsed(R"({"train_batch_size": 8, "zero_optimization":
      {"stage": 3, "cpu_offload": true, "cpu_offload_params": false}})");
  EXPECT_EQ(*config.Find("zero_optimization.offload_optimizer.device"), "cpu");
  EXPECT_EQ(*config.Find("zero_optimization.offload_param.device"), "none");
  EXPECT_THAT(config.warnings(), Contains(HasSubstr("cpu_offload is an older spelling of "
                                                    "zero_optimization.offload_optimizer.device")));
}

// DeepSpeed's rules are h^2, 0.9 h^2 and 10 h. The last two apply at stage 3 alone; other stages
// have the defaults.
TEST(ConfigSectionsTest, AutoSizesOfGathersFollowTheModelAtStageThreeAlone) {
  for (const int stage : {0, 1, 2, 3}) {
    const Config config =
        Parsed(absl::StrCat(R"({"train_batch_size": 8, "model": {"hidden_size": 64},
        "zero_optimization": {"stage": )",
                            stage, R"(, "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"}})"));
    EXPECT_EQ(config.reduce_bucket_elements(), 4096) << stage;
    EXPECT_EQ(*config.Find("zero_optimization.stage3_prefetch_bucket_size"),
              stage == 3 ? 3686 : 50000000)
        << stage;
    EXPECT_EQ(*config.Find("zero_optimization.stage3_param_persistence_threshold"),
              stage == 3 ? 640 : 100000)
        << stage;
  }
}

// The size comes from the document, or from the file that it names; the document's own word wins.
TEST(ConfigSectionsTest, TheModelsSizeIsItsOwnOrThatOfTheFileThatItNames) {
  const plan::TempFolder folder;
  const auto write = [&](const char* text) {
    ASSERT_TRUE(WriteFileAtomic(folder.path() + "/config.json", text).ok());
  };
  const auto text = [&](const std::string& model) {
    return absl::StrCat(R"({"train_batch_size": 8, "model": {)", model,
                        R"(}, "zero_optimization": {"reduce_bucket_size": "auto"}})");
  };
  const auto bucket = [&](const std::string& model) {
    return Parsed(text(model)).reduce_bucket_elements();
  };
  const std::string named = absl::StrCat(R"("pretrained": ")", folder.path(), "\"");
  write(R"({"hidden_size": 96})");
  EXPECT_EQ(bucket(named), 96 * 96);
  EXPECT_EQ(bucket(named + R"(, "hidden_size": 32)"), 32 * 32);
  EXPECT_EQ(bucket(R"("hidden_size": null, "n_embd": 64)"), 64 * 64);
  EXPECT_EQ(bucket(R"("hidden_size": 1)"), 1);
  EXPECT_EQ(bucket(R"("hidden_size": 16777216)"), int64_t{1} << 48);
  EXPECT_EQ(bucket(R"("pretrained": 7, "layers": 3)"), 6553600) << "no size: the default";
  for (const char* const wrong : {"0", "16777217", "1.5", "\"large\""}) {
    EXPECT_THAT(std::string(Failure(text(absl::StrCat(R"("n_embd": )", wrong))).message()),
                HasSubstr(absl::StrCat("model.n_embd is ", wrong, "; want an integer from 1 to")));
  }
  write(R"({"hidden_size": -1})");
  EXPECT_THAT(std::string(Failure(text(named)).message()),
              HasSubstr(folder.path() + "/config.json.hidden_size is -1"));
  write("no JSON");
  EXPECT_EQ(bucket(named), 6553600) << "the program itself reports a broken file";
}

// docs/MODELS.md: the same setting in other spellings goes, and an object replaces all but theta.
TEST(ConfigSectionsTest, ARotarySettingThatIsSetIsSaidOnce) {
  constexpr char kText[] = R"({"train_batch_size": 8, "model": {"rope_theta": 1,
      "rope_scaling": {"type": "a", "factor": 1, "rope_theta": 1},
      "rope_parameters": {"rope_type": "a", "factor": 1, "rope_theta": 1}}})";
  const std::pair<const char*, const char*> cases[] = {
      {"model.rope_theta=2", R"({"rope_theta": 2, "rope_scaling": {"type": "a", "factor": 1},
                                 "rope_parameters": {"rope_type": "a", "factor": 1}})"},
      {"model.rope_scaling.rope_theta=2",
       R"({"rope_scaling": {"type": "a", "factor": 1, "rope_theta": 2},
           "rope_parameters": {"rope_type": "a", "factor": 1}})"},
      {"model.rope_scaling.factor=2",
       R"({"rope_theta": 1, "rope_scaling": {"type": "a", "factor": 2, "rope_theta": 1},
           "rope_parameters": {"rope_type": "a", "rope_theta": 1}})"},
      {"model.rope_parameters.factor=2",
       R"({"rope_theta": 1, "rope_scaling": {"type": "a", "rope_theta": 1},
           "rope_parameters": {"rope_type": "a", "factor": 2, "rope_theta": 1}})"},
      {"model.rope_scaling.type=b",
       R"({"rope_theta": 1, "rope_scaling": {"type": "b", "factor": 1, "rope_theta": 1},
           "rope_parameters": {"factor": 1, "rope_theta": 1}})"},
      {"model.rope_scaling.rope_type=b",
       R"({"rope_theta": 1, "rope_scaling": {"rope_type": "b", "factor": 1, "rope_theta": 1},
           "rope_parameters": {"factor": 1, "rope_theta": 1}})"},
      {R"(model.rope_parameters={"rope_type": "b"})",
       R"({"rope_theta": 1, "rope_scaling": {"rope_theta": 1},
           "rope_parameters": {"rope_type": "b"}})"},
      {R"(model.rope_parameters={"rope_type": "b", "rope_theta": 2})",
       R"({"rope_scaling": {}, "rope_parameters": {"rope_type": "b", "rope_theta": 2}})"},
      {"model.rope_scaling=null",
       R"({"rope_theta": 1, "rope_scaling": null, "rope_parameters": {"rope_theta": 1}})"},
      {"model.layers=2",
       R"({"rope_theta": 1, "rope_scaling": {"type": "a", "factor": 1, "rope_theta": 1},
           "rope_parameters": {"rope_type": "a", "factor": 1, "rope_theta": 1}, "layers": 2})"}};
  for (const auto& [set, expected] : cases) {
    const auto config = Config::Parse(kText, "run.json", {set}, 1);
    ASSERT_TRUE(config.ok()) << config.status();
    // Whatever the order of the keys.
    EXPECT_EQ(nlohmann::json::parse(DumpJson(config->user("model"))),
              nlohmann::json::parse(expected))
        << set;
  }
}

SchedulerConfig Schedule(const std::string& type, const std::string& params) {
  return Parsed(absl::StrCat(R"({"train_batch_size": 8, "scheduler": {"type": ")", type,
                             R"(", "params": {)", params, "}}}"))
      .scheduler();
}

TEST(ConfigSectionsTest, EachScheduleHasTheValuesOfItsKeys) {
  using Kind = SchedulerConfig::Kind;
  const SchedulerConfig warmup =
      Schedule("WarmupLR", R"("warmup_min_lr": 1e-5, "warmup_max_lr": 2e-3,
                              "warmup_num_steps": 30, "warmup_type": "linear")");
  EXPECT_EQ(warmup.kind, Kind::kWarmup);
  EXPECT_EQ(warmup.base_lr, 1e-3) << "the optimizer's";
  EXPECT_EQ(warmup.warmup_min_lr, 1e-5);
  EXPECT_EQ(warmup.warmup_max_lr, 2e-3);
  EXPECT_EQ(warmup.warmup_num_steps, 30);
  EXPECT_FALSE(warmup.warmup_log);
  const SchedulerConfig cosine =
      Schedule("WarmupCosineLR", R"("warmup_min_ratio": 0.25, "cos_min_ratio": 0.125,
                                    "warmup_num_steps": 7, "total_num_steps": 70)");
  EXPECT_EQ(cosine.kind, Kind::kWarmupCosine);
  EXPECT_EQ(cosine.warmup_min_ratio, 0.25);
  EXPECT_EQ(cosine.cos_min_ratio, 0.125);
  EXPECT_EQ(cosine.total_num_steps, 70);
  EXPECT_TRUE(cosine.warmup_log);
  const SchedulerConfig range =
      Schedule("LRRangeTest", R"("lr_range_test_min_lr": 1e-4, "lr_range_test_step_rate": 5,
                                 "lr_range_test_step_size": 25, "lr_range_test_staircase": true)");
  EXPECT_EQ(range.kind, Kind::kRangeTest);
  EXPECT_EQ(range.range_min_lr, 1e-4);
  EXPECT_EQ(range.range_step_rate, 5);
  EXPECT_EQ(range.range_step_size, 25);
  EXPECT_TRUE(range.range_staircase);
  const SchedulerConfig stable =
      Schedule("WSD", R"("warmup_min_ratio": 0.5, "warmup_num_steps": 3, "total_num_steps": 10,
                         "decay_num_steps": 7, "decay_type": "linear", "decay_min_ratio": 0.125)");
  EXPECT_EQ(stable.warmup_min_ratio, 0.5);
  EXPECT_EQ(stable.warmup_num_steps, 3) << "with the decay all of the run, which is allowed";
  EXPECT_EQ(stable.decay_num_steps, 7);
  EXPECT_FALSE(stable.decay_sqrt);
  EXPECT_EQ(stable.decay_min_ratio, 0.125);
}

TEST(ConfigSectionsTest, OneCycleHasTheValuesOfItsKeys) {
  const OneCycleConfig cycle =
      Schedule("OneCycle", R"("cycle_min_lr": 1e-4, "cycle_max_lr": 1e-2, "decay_lr_rate": 0.5,
          "cycle_first_step_size": 30, "cycle_second_step_size": 20, "cycle_first_stair_count": 3,
          "cycle_second_stair_count": 2, "decay_step_size": 4, "cycle_min_mom": 0.7,
          "cycle_max_mom": 0.8)")
          .cycle;
  EXPECT_EQ(cycle.min_lr, 1e-4);
  EXPECT_EQ(cycle.max_lr, 1e-2);
  EXPECT_EQ(cycle.decay_lr_rate, 0.5);
  EXPECT_EQ(cycle.first_steps, 30);
  EXPECT_EQ(cycle.second_steps, 20);
  EXPECT_EQ(cycle.first_stairs, 3);
  EXPECT_EQ(cycle.second_stairs, 2);
  EXPECT_EQ(cycle.decay_steps, 4);
  EXPECT_TRUE(cycle.momentum);
  EXPECT_EQ(cycle.min_momentum, 0.7);
  EXPECT_EQ(cycle.max_momentum, 0.8);
}

TEST(ConfigSectionsTest, ShortRunsStillWarmUpAndDecayForAStep) {
  const Config config = Parsed(R"({"train_batch_size": 8, "train_steps": 9,
                                   "scheduler": {"type": "WSD"}})");
  EXPECT_EQ(config.scheduler().warmup_num_steps, 1);
  EXPECT_EQ(config.scheduler().decay_num_steps, 1);
  EXPECT_EQ(Parsed(R"({"train_batch_size": 8, "train_steps": 49, "scheduler": {
                       "type": "WarmupLR", "params": {"warmup_num_steps": "auto"}}})")
                .scheduler()
                .warmup_num_steps,
            1);
}

TEST(ConfigSectionsTest, OnlyAWarmupThatDeepSpeedLengthensIsToldSo) {
  const auto warnings = [](const std::string& type) {
    return Parsed(absl::StrCat(R"({"train_batch_size": 8, "scheduler": {"type": ")", type,
                               R"(", "params": {"warmup_num_steps": 0}}})"))
        .warnings();
  };
  EXPECT_THAT(warnings("WarmupLR"), Contains(HasSubstr("warmup_num_steps 0 acts as 2")));
  EXPECT_THAT(warnings("WSD"), SizeIs(0));
  EXPECT_THAT(Parsed(R"({"train_batch_size": 8, "scheduler": {"type": "WarmupLR",
                         "params": {"warmup_num_steps": 2}}})")
                  .warnings(),
              SizeIs(0));
}

// Each precision has a switch of its own, which says nothing where another precision is on.
TEST(ConfigSectionsTest, BuffersAreCastByTheSwitchOfThePrecisionInForce) {
  const auto cast = [](bool bf16, bool bf16_casts, bool fp16, bool fp16_casts) {
    const auto text = [](bool value) { return value ? "true" : "false"; };
    return Parsed(absl::StrCat(R"({"train_batch_size": 8, "bf16": {"enabled": )", text(bf16),
                               R"(, "cast_buffers": )", text(bf16_casts),
                               R"(}, "fp16": {"enabled": )", text(fp16), R"(, "cast_buffers": )",
                               text(fp16_casts), "}}"))
        .precision()
        .cast_buffers;
  };
  EXPECT_TRUE(cast(true, true, false, false));
  EXPECT_FALSE(cast(true, false, false, true));
  EXPECT_TRUE(cast(false, false, true, true));
  EXPECT_FALSE(cast(false, true, true, false));
  EXPECT_FALSE(cast(false, true, false, true));
}

TEST(ConfigSectionsTest, WhereAValueComesFromIsKept) {
  const Config config = *Config::Parse(
      R"({"train_micro_batch_size_per_gpu": 4, "communication_data_type": "bf16",
          "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 60}}})",
      "run.json", {"seed=5"}, 2);
  EXPECT_EQ(config.OriginOf("seed"), ConfigOrigin::kSet);
  EXPECT_EQ(config.OriginOf("train_micro_batch_size_per_gpu"), ConfigOrigin::kFile);
  EXPECT_EQ(config.OriginOf("train_batch_size"), ConfigOrigin::kDerived);
  EXPECT_EQ(config.OriginOf("comm.wire_dtype"), ConfigOrigin::kDerived);
  EXPECT_EQ(config.OriginOf("train_steps"), ConfigOrigin::kDerived);
  EXPECT_EQ(config.train_steps(), 60);
  EXPECT_EQ(config.OriginOf("deterministic"), ConfigOrigin::kDefault);
  EXPECT_EQ(config.OriginOf("zero_optimization.overlap_comm"), ConfigOrigin::kDefault);
  EXPECT_EQ(config.OriginOf("no.such.key"), std::nullopt);
  EXPECT_EQ(config.Find("no.such.key"), nullptr);
  const Config plain = Parsed(R"({"train_batch_size": 8})");
  EXPECT_EQ(plain.OriginOf("train_steps"), ConfigOrigin::kDefault);
  EXPECT_EQ(plain.OriginOf("comm.wire_dtype"), ConfigOrigin::kDefault);
}

TEST(ConfigSectionsTest, AutoOfAKeyWithoutADefaultIsNone) {
  EXPECT_THAT(
      Parsed(R"({"train_batch_size": 8, "activation_checkpointing": {"nvme_path": "auto"}})")
          .warnings(),
      Contains(HasSubstr("activation_checkpointing.nvme_path is \"auto\": dtrain takes none, "
                         "the default")));
  // A schedule that does not end has no number of steps.
  EXPECT_THAT(Parsed(R"({"train_batch_size": 8, "scheduler": {"type": "WarmupLR",
                         "params": {"total_num_steps": "auto"}}})")
                  .warnings(),
              Contains(HasSubstr("scheduler.params.total_num_steps is \"auto\": dtrain takes none, "
                                 "the default")));
}

TEST(ConfigSectionsTest, PredivisionIsTheWorldOrTheFactor) {
  const auto of = [](const std::string& text) {
    return Config::Parse(text, "run.json", {}, 4)->gradient_predivision();
  };
  EXPECT_EQ(of(R"({"train_batch_size": 8})"), 1);
  EXPECT_EQ(of(R"({"train_batch_size": 8, "prescale_gradients": true})"), 4);
}

TEST(ConfigSectionsTest, ActivationsHaveOnePlace) {
  using Tier = ActivationCheckpointingConfig::Tier;
  const auto of = [](const std::string& section) {
    return Parsed(R"({"train_batch_size": 8, "activation_checkpointing": {"mode": "full")" +
                  section + "}}");
  };
  EXPECT_EQ(of("").activation_checkpointing().tier, Tier::kNone);
  const Config memory = of(R"(, "cpu_checkpointing": true)");
  EXPECT_EQ(memory.activation_checkpointing().tier, Tier::kMemory);
  EXPECT_THAT(memory.warnings(), SizeIs(0));
  const ActivationCheckpointingConfig file =
      of(R"(, "nvme_path": "/nvme", "synchronize_checkpoint_boundary": true)")
          .activation_checkpointing();
  EXPECT_EQ(file.tier, Tier::kFile);
  EXPECT_EQ(file.nvme_path, "/nvme");
  EXPECT_TRUE(file.wait_written);
  EXPECT_THAT(of(R"(, "synchronize_checkpoint_boundary": true)").warnings(),
              Contains(HasSubstr("no effect without cpu_checkpointing or nvme_path")));
  EXPECT_THAT(Parsed(R"({"train_batch_size": 8,
                         "activation_checkpointing": {"cpu_checkpointing": true}})")
                  .warnings(),
              Contains(HasSubstr("mode is \"none\"")));
  EXPECT_THAT(std::string(Failure(R"({"train_batch_size": 8, "activation_checkpointing":
                                      {"cpu_checkpointing": true, "nvme_path": "/nvme"}})")
                              .message()),
              HasSubstr("both say where to keep activations; remove one of them"));
}

}  // namespace
}  // namespace dtrain::config_sections_test
