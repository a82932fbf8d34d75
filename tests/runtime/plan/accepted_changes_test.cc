// Tests which values of a saved run may change when it is resumed, and the errors of wrong
// requests.
#include "runtime/plan/config/accepted_changes.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/plan/config/config_keys.h"

namespace dtrain::plan::accepted_changes_test {
namespace {

using ::testing::HasSubstr;

std::string Refused(const std::string& key) {
  const absl::Status status = CheckAcceptable(key);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << key;
  return std::string(status.message());
}

TEST(AcceptedChanges, RatesSchedulesAndBatchesMayChangeOnPurpose) {
  for (const char* const key : {"optimizer.params.lr",
                                "optimizer.params",
                                "optimizer.no_weight_decay",
                                "scheduler",
                                "scheduler.type",
                                "scheduler.params.warmup_num_steps",
                                "gradient_clipping",
                                "gradient_clipping_value",
                                "train_batch_size",
                                "data.train",
                                "data",
                                "deterministic",
                                "data.format",
                                "data.document_token",
                                "fp16.loss_scale",
                                "fp16.loss_scale_window",
                                "fp16.hysteresis",
                                "fp16.consecutive_hysteresis",
                                "fp16.min_loss_scale",
                                "fp8.scaling",
                                "fp8",
                                "bf16.stochastic_rounding",
                                "zero_optimization.zero_quantized_weights",
                                "zero_optimization.zero_quantized_gradients"}) {
    EXPECT_TRUE(CheckAcceptable(key).ok()) << key << ": " << CheckAcceptable(key);
  }
}

TEST(AcceptedChanges, WhatTheCheckpointIsMadeOfMayNotAndTheReasonIsItsOwn) {
  const std::pair<const char*, const char*> keys[] = {
      {"optimizer.type", "because its checkpoints fit no other value; allowed: "},
      {"optimizer.skip_unused_parameters", "because its checkpoints fit no other value; allowed: "},
      {"bf16.enabled", "because its checkpoints fit no other value; allowed: optimizer.params.*"},
      {"fp16.enabled", "because its checkpoints fit no other value; "},
      {"bf16.cast_buffers", "because its checkpoints fit no other value; "},
      {"bf16.bf16_optimizer_states", "because its checkpoints fit no other value; "},
      {"model", "because its checkpoints are of one model with all of its settings, dropout too; "},
      {"model.hidden_size", "because its checkpoints are of one model with all of its settings"},
      {"model.attn_pdrop", "dropout too; a new run can start from their weights"},
      {"finetune.lora.lora_dropout", "dropout too; a new run can start from their weights"},
      {"seed", "because its checkpoints hold a position in the data, whose order and windows"},
      {"data.sequence_length", "because its checkpoints hold a position in the data"},
      {"module_buffers", "because it decides which ranks' buffers its checkpoints hold"},
      {"fp16.initial_scale_power",
       "because it is the scale of the first step alone: a resumed run goes on from the scale"}};
  for (const auto& [key, says] : keys) {
    EXPECT_THAT(Refused(key), HasSubstr(says)) << key;
  }
}

// Every key that a resumed run is compared by is of one of the two kinds, and of one alone.
TEST(AcceptedChanges, EachKeyOfARunHasAReasonOrMayChange) {
  for (const ConfigKey& key : ConfigKeys()) {
    if ((key.flags & kIdentity) != 0) {
      const bool may = CheckAcceptable(key.path).ok();
      const std::string reason = may ? "" : Refused(key.path);
      EXPECT_TRUE(may || reason.find("because it") != std::string::npos) << key.path << reason;
    }
  }
}

TEST(AcceptedChanges, WhatMayChangeAnywayAndWhatIsNoKeyAreToldSo) {
  EXPECT_THAT(Refused("metrics.interval"),
              HasSubstr("--accept-change metrics.interval: this key may change whenever a run is "
                        "resumed; leave the option out"));
  EXPECT_THAT(Refused("optimizer.params.learning_rat"),
              HasSubstr("unknown key; nearest known key"));
  EXPECT_THAT(Refused("shedule"), HasSubstr("--accept-change shedule: unknown key"));
}

TEST(AcceptedChanges, ARequestCoversItsKeyOrItsSectionAndNothingElse) {
  const ConfigDifference rate{.key = "optimizer.params.lr", .was = 1, .now = 2, .text = ""};
  EXPECT_TRUE(IsAccepted(rate, {"optimizer.params.lr"}));
  EXPECT_TRUE(IsAccepted(rate, {"seed", "optimizer.params"}));
  EXPECT_TRUE(IsAccepted(rate, {"optimizer"}));
  EXPECT_FALSE(IsAccepted(rate, {}));
  EXPECT_FALSE(IsAccepted(rate, {"optimizer.params.l"})) << "a part of a name is no section";
  EXPECT_FALSE(IsAccepted(rate, {"scheduler"}));
  const ConfigDifference seed{.key = "seed", .was = 1, .now = 2, .text = ""};
  EXPECT_FALSE(IsAccepted(seed, {"seed"})) << "whatever was asked";
}

// SGD keeps a momentum for each weight, or none: a checkpoint without it cannot go on with it.
TEST(AcceptedChanges, MomentumMayChangeButNotComeOrGo) {
  const auto acceptable = [](double was, double now) {
    return IsAcceptable(
        {.key = "optimizer.params.momentum", .was = Json(was), .now = Json(now), .text = ""});
  };
  EXPECT_TRUE(acceptable(0.9, 0.8));
  EXPECT_FALSE(acceptable(0, 0.9));
  EXPECT_FALSE(acceptable(0.9, 0));
}

}  // namespace
}  // namespace dtrain::plan::accepted_changes_test
