// Each accessor of Config has the value of its own key, and of no other: every value of the
// document differs from the default and from its neighbours.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtrain/config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::config_values_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Config Parsed(absl::string_view text, int world_size = 4) {
  absl::StatusOr<Config> config = Config::Parse(text, "run.json", {}, world_size);
  EXPECT_TRUE(config.ok()) << config.status();
  return *std::move(config);
}

// A configuration with one section: {"fp8": {...}}.
Config With(const std::string& section) {
  return Parsed(absl::StrCat(R"({"train_batch_size": 8, )", section, "}"));
}

TEST(ConfigValuesTest, TheRunHasItsOwn) {
  const Config config = With(R"("train_steps": 30, "eval_interval": 7, "eval_batches": 3,
      "seed": 11, "device": "cpu", "cuda_graphs": true, "module_buffers": "average")");
  EXPECT_EQ(config.eval_interval(), 7);
  EXPECT_EQ(config.eval_batches(), 3);
  EXPECT_EQ(config.seed(), 11U);
  EXPECT_EQ(config.device(), "cpu");
  EXPECT_TRUE(config.cuda_graphs());
  EXPECT_EQ(config.module_buffers(), "average");
  EXPECT_EQ(config.world_size(), 4);
  const Config plain = With(R"("train_steps": 30)");
  EXPECT_EQ(plain.eval_interval(), 0);
  EXPECT_EQ(plain.eval_batches(), 16);
  EXPECT_EQ(plain.device(), "auto");
  EXPECT_FALSE(plain.cuda_graphs());
  EXPECT_EQ(plain.module_buffers(), "broadcast");
}

TEST(ConfigValuesTest, GradientsHaveTheirs) {
  const Config config = With(R"("gradient_clipping": 3, "gradient_clipping_value": 0.25,
      "gradient_predivide_factor": 2, "comm": {"bucket_tuning": "on"})");
  EXPECT_EQ(config.gradient_clipping(), 3);
  EXPECT_EQ(config.gradient_clipping_value(), 0.25);
  EXPECT_EQ(config.gradient_predivision(), 2) << "the factor, where the ranks do not divide";
  EXPECT_EQ(config.bucket_tuning(), "on");
  EXPECT_EQ(With(R"("seed": 1)").gradient_clipping_value(), 0);
  EXPECT_EQ(With(R"("seed": 1)").bucket_tuning(), "auto");
}

// A change of the format of gradients would train other weights, and nothing would say so.
TEST(ConfigValuesTest, ProductsInFp8HaveTheirs) {
  const auto fp8 = [](const std::string& keys) {
    return With(absl::StrCat(R"("bf16": {"enabled": true}, "fp8": {)", keys, "}")).fp8();
  };
  const Fp8Config plain = fp8("");
  EXPECT_FALSE(plain.enabled);
  EXPECT_FALSE(plain.rowwise);
  EXPECT_FALSE(plain.e4m3_gradients);
  const Fp8Config rows = fp8(R"("enabled": true, "scaling": "rowwise", "gradients": "e5m2")");
  EXPECT_TRUE(rows.enabled);
  EXPECT_TRUE(rows.rowwise);
  EXPECT_FALSE(rows.e4m3_gradients);
  const Fp8Config gradients = fp8(R"("enabled": true, "gradients": "e4m3")");
  EXPECT_TRUE(gradients.enabled);
  EXPECT_FALSE(gradients.rowwise);
  EXPECT_TRUE(gradients.e4m3_gradients);
  EXPECT_THAT(std::string(Config::Parse(R"({"train_batch_size": 8, "fp8": {"enabled": true}})",
                                        "run.json", {}, 1)
                              .status()
                              .message()),
              HasSubstr("fp8.enabled needs bf16.enabled"));
}

TEST(ConfigValuesTest, StatesInTwoBytesAreRoundedAsAsked) {
  const Config config = With(R"("bf16": {"enabled": true, "bf16_optimizer_states": true,
                                         "stochastic_rounding": true})");
  EXPECT_TRUE(config.stochastic_rounding());
  EXPECT_FALSE(
      With(R"("bf16": {"enabled": true, "bf16_optimizer_states": true})").stochastic_rounding());
}

TEST(ConfigValuesTest, ShardedWeightsHaveTheirs) {
  const Config config = With(R"("zero_optimization": {"stage": 3,
      "stage3_max_live_parameters": 21, "stage3_max_reuse_distance": 22,
      "stage3_prefetch_bucket_size": 23, "zero_hpz_partition_size": 2})");
  EXPECT_EQ(config.zero_stage(), 3);
  EXPECT_EQ(config.gather_limits().live_max, 21);
  EXPECT_EQ(config.gather_limits().reuse_max, 22);
  EXPECT_EQ(config.gather_limits().prefetch_max, 23);
  EXPECT_EQ(config.hpz_partition_size(), 2);
  const Config plain = With(R"("zero_optimization": {"stage": 3})");
  EXPECT_EQ(plain.hpz_partition_size(), 1);
  EXPECT_FALSE(plain.quantized_weights());
  EXPECT_FALSE(plain.quantized_gradients());
  EXPECT_TRUE(With(R"("zero_optimization": {"stage": 3, "zero_quantized_weights": true})")
                  .quantized_weights());
  EXPECT_FALSE(With(R"("zero_optimization": {"stage": 3, "zero_quantized_weights": true})")
                   .quantized_gradients());
}

TEST(ConfigValuesTest, RecomputationHasItsOwn) {
  using Mode = ActivationCheckpointingConfig::Mode;
  const auto of = [](const std::string& keys) {
    return With(absl::StrCat(R"("activation_checkpointing": {)", keys, "}"))
        .activation_checkpointing();
  };
  EXPECT_EQ(of("").mode, Mode::kNone);
  EXPECT_EQ(of("").every, 1);
  EXPECT_EQ(of(R"("mode": "selective")").mode, Mode::kSelective);
  const ActivationCheckpointingConfig full = of(R"("mode": "full", "every": 3)");
  EXPECT_EQ(full.mode, Mode::kFull);
  EXPECT_EQ(full.every, 3);
  EXPECT_FALSE(full.wait_written);
  std::vector<int64_t> units;
  for (int64_t unit = 0; unit < 8; ++unit) {
    if (full.full(unit)) {
      units.push_back(unit);
    }
    EXPECT_FALSE(full.selective(unit));
  }
  EXPECT_THAT(units, ElementsAre(0, 3, 6));
}

TEST(ConfigValuesTest, DocumentsHaveTheirs) {
  const Config config = With(R"("data": {"document_token": 5, "document_token_place": "start"})");
  EXPECT_EQ(config.data_document_token(), 5);
  EXPECT_TRUE(config.data_document_token_starts());
  const Config plain = With(R"("data": {"document_token_place": "end"})");
  EXPECT_EQ(plain.data_document_token(), -1);
  EXPECT_FALSE(plain.data_document_token_starts());
}

TEST(ConfigValuesTest, CheckpointsHaveTheirs) {
  const Config config = With(R"("checkpoint": {"interval": 41, "keep": 42, "keep_every": 43,
      "keep_best": 44, "best_metric": "own/accuracy", "best_is": "largest", "async": false,
      "staging_memory": 45, "remote": "/second", "write_rate": 46, "journal": "sync",
      "journal_dtype": "fp32", "journal_share": 0.5, "max_shard_size": 47, "dir": "/first"})");
  EXPECT_EQ(config.checkpoint_interval(), 41);
  EXPECT_FALSE(config.checkpoint_continuous());
  EXPECT_EQ(config.checkpoint_keep(), 42);
  EXPECT_EQ(config.checkpoint_keep_every(), 43);
  EXPECT_EQ(config.checkpoint_best().count, 44);
  EXPECT_EQ(config.checkpoint_best().metric, "own/accuracy");
  EXPECT_TRUE(config.checkpoint_best().larger_is_better);
  EXPECT_FALSE(config.checkpoint_async());
  EXPECT_EQ(config.checkpoint_staging_memory(), 45);
  EXPECT_EQ(config.checkpoint_remote(), "/second");
  EXPECT_EQ(config.checkpoint_write_rate(), 46);
  EXPECT_EQ(config.checkpoint_journal(), "sync");
  EXPECT_EQ(config.checkpoint_journal_dtype(), "fp32");
  EXPECT_EQ(config.checkpoint_journal_share(), 0.5);
  EXPECT_EQ(config.checkpoint_dir(), "/first");
  EXPECT_EQ(config.checkpoint_shard_bytes_max(), 47);
}

TEST(ConfigValuesTest, WhatCountsOnlyBesideAnotherKeyIsSaid) {
  const auto said = [](const std::string& checkpoint) {
    return With(absl::StrCat(R"("checkpoint": {)", checkpoint, "}")).warnings();
  };
  EXPECT_THAT(said(R"("async": false, "staging_memory": 5, "write_rate": 6, "journal_share": 0.5,
                      "best_is": "largest", "replica_memory": 7)"),
              ElementsAre(HasSubstr("staging_memory has no effect without checkpoint.async"),
                          HasSubstr("write_rate has no effect without checkpoint.async"),
                          HasSubstr("best_is has no effect without checkpoint.keep_best"),
                          HasSubstr("replica_memory has no effect without checkpoint.replicas"),
                          HasSubstr("journal_share has no effect without checkpoint.journal")));
  EXPECT_THAT(said(R"("interval": "continuous", "async": false, "write_rate": 6)"), IsEmpty());
  EXPECT_THAT(said(R"("async": false, "write_rate": 0, "journal_dtype": "bf16")"), IsEmpty());
}

TEST(ConfigValuesTest, CheckpointsMayFollowEachOther) {
  const Config config = With(R"("checkpoint": {"interval": "continuous", "async": false})");
  EXPECT_TRUE(config.checkpoint_continuous());
  EXPECT_EQ(config.checkpoint_interval(), 0) << "no step is due for itself";
  EXPECT_TRUE(config.checkpoint_async()) << "they are written in the background";
  const Config plain = With(R"("seed": 1)");
  EXPECT_FALSE(plain.checkpoint_continuous());
  EXPECT_EQ(plain.checkpoint_interval(), 0);
  EXPECT_TRUE(plain.checkpoint_async());
  EXPECT_EQ(plain.checkpoint_best().count, 0);
  EXPECT_EQ(plain.checkpoint_best().metric, "eval/loss");
  EXPECT_FALSE(plain.checkpoint_best().larger_is_better);
  EXPECT_EQ(plain.checkpoint_journal(), "off");
  EXPECT_EQ(plain.checkpoint_remote(), "");
}

TEST(ConfigValuesTest, LocalCheckpointsHaveTheirs) {
  const Config config = With(R"("checkpoint": {"local_dir": "/disk", "replicas": 1,
      "replica_dir": "/memory", "replica_memory": 51})");
  EXPECT_EQ(config.checkpoint_local_dir(), "/disk");
  EXPECT_EQ(config.checkpoint_replicas(), 1);
  EXPECT_EQ(config.checkpoint_replica_dir(), "/memory");
  EXPECT_EQ(config.checkpoint_replica_memory(), 51);
  const Config plain = With(R"("seed": 1)");
  EXPECT_EQ(plain.checkpoint_local_dir(), "");
  EXPECT_EQ(plain.checkpoint_replicas(), 0);
  EXPECT_EQ(plain.checkpoint_replica_dir(), "/dev/shm");
  EXPECT_EQ(plain.checkpoint_replica_memory(), 0);
}

TEST(ConfigValuesTest, TracesHaveTheirs) {
  const Config config = With(R"("metrics": {"trace_first_step": 5, "trace_steps": 6})");
  EXPECT_EQ(config.metrics_trace().first_step, 5);
  EXPECT_EQ(config.metrics_trace().steps, 6);
  EXPECT_EQ(With(R"("seed": 1)").metrics_trace().first_step, 3);
  EXPECT_EQ(With(R"("seed": 1)").metrics_trace().steps, 0);
}

TEST(ConfigValuesTest, WhereAValueComesFromHasAName) {
  EXPECT_EQ(ConfigOriginName(ConfigOrigin::kDefault), "default");
  EXPECT_EQ(ConfigOriginName(ConfigOrigin::kFile), "file");
  EXPECT_EQ(ConfigOriginName(ConfigOrigin::kSet), "--set");
  EXPECT_EQ(ConfigOriginName(ConfigOrigin::kDerived), "derived");
}

}  // namespace
}  // namespace dtrain::config_values_test
