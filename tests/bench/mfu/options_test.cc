#include "bench/mfu/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/mfu/presets.h"
#include "dtrain/config.h"

namespace dtrain::bench::options_test {
namespace {

using ::testing::HasSubstr;

int Parse(std::vector<std::string> words, MfuOptions& options) {
  words.insert(words.begin(), "dtrain-bench-mfu");
  std::vector<char*> argv;
  for (std::string& word : words) {
    argv.push_back(word.data());
  }
  return ParseMfuOptions(static_cast<int>(argv.size()), argv.data(), options);
}

TEST(MfuOptions, WrongWordsEndWith64) {
  MfuOptions options;
  EXPECT_EQ(Parse({"--dtype", "fp64"}, options), 64);
  EXPECT_EQ(Parse({"--zero", "4"}, options), 64);
  EXPECT_EQ(Parse({"--steps", "0"}, options), 64);
  EXPECT_EQ(Parse({"--peak-tflops", "-1"}, options), 64);
  EXPECT_EQ(Parse({"--preset", "gpt2-124m", "--hf", "config.json"}, options), 64);
  EXPECT_EQ(Parse({"--no-such"}, options), 64);
  EXPECT_EQ(Parse({"--help"}, options), 0);
}

TEST(MfuOptions, BecomeAConfigurationThatTheEngineTakes) {
  MfuOptions options;
  ASSERT_EQ(Parse({"--micro-batch", "3", "--accumulation", "2", "--zero", "2", "--dtype", "bf16",
                   "--recompute", "full", "--bf16-states", "--set", "seed=9"},
                  options),
            -1);
  const auto config = Config::Parse("{}", "defaults", EngineSettings(options, 4), 4);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->global_batch(), 24);
  EXPECT_EQ(config->micro_batch(), 3);
  EXPECT_EQ(config->zero_stage(), 2);
  EXPECT_EQ(config->precision().kind, PrecisionConfig::Kind::kBFloat16);
  EXPECT_TRUE(config->optimizer().bf16_states);
  EXPECT_TRUE(config->activation_checkpointing().full(0));
  EXPECT_EQ(config->seed(), 9U);
  EXPECT_EQ(*config->Find("device"), "cpu");
}

TEST(MfuOptions, TheDeviceIsTheEngines) {
  MfuOptions options;
  ASSERT_EQ(Parse({"--device", "cuda"}, options), -1);
  const auto config = Config::Parse("{}", "defaults", EngineSettings(options, 1), 1);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(*config->Find("device"), "cuda");
}

TEST(Presets, HaveTheNamesOfTheirFiles) {
  EXPECT_EQ(PresetNames(),
            "gpt2-124m, gpt2-large, gpt2-medium, gpt2-xl, llama-1b, llama-3b, llama-8b, "
            "qwen2.5-0.5b, qwen2.5-1.5b, qwen2.5-3b, qwen2.5-7b, qwen3-0.6b");
  EXPECT_EQ((*FindPreset("qwen2.5-7b"))["hidden_size"], 3584);
}

TEST(Presets, AreConfigurationsOfModels) {
  for (const Preset& preset : Presets()) {
    const auto config = FindPreset(preset.name);
    ASSERT_TRUE(config.ok()) << preset.name << ": " << config.status();
    EXPECT_TRUE(config->contains("model_type")) << preset.name;
  }
}

TEST(Presets, AnUnknownOneNamesThoseThatThereAre) {
  const auto missing = FindPreset("gpt5");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr(PresetNames()));
}

}  // namespace
}  // namespace dtrain::bench::options_test
