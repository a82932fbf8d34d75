// Sections of DeepSpeed's that are switched off, older spellings, sizes that follow the model, and
// where activations wait.
#include <string>

#include "absl/strings/str_cat.h"
#include "dtrain/config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

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
