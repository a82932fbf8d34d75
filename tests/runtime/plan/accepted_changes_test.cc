// Tests which values of a saved run may change when it is resumed, and the errors of wrong
// requests.
#include "runtime/plan/config/accepted_changes.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::plan::accepted_changes_test {
namespace {

using ::testing::HasSubstr;

std::string Refused(const std::string& key) {
  const absl::Status status = CheckAcceptable(key);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << key;
  return std::string(status.message());
}

TEST(AcceptedChanges, RatesSchedulesAndBatchesMayChangeOnPurpose) {
  for (const char* const key :
       {"optimizer.params.lr", "optimizer.params", "optimizer.no_weight_decay", "scheduler",
        "scheduler.type", "scheduler.params.warmup_num_steps", "gradient_clipping",
        "gradient_clipping_value", "train_batch_size", "data.train", "data", "deterministic"}) {
    EXPECT_TRUE(CheckAcceptable(key).ok()) << key << ": " << CheckAcceptable(key);
  }
}

TEST(AcceptedChanges, WhatTheCheckpointIsMadeOfMayNot) {
  for (const char* const key : {"optimizer.type", "model", "model.hidden_size", "seed",
                                "data.sequence_length", "bf16.enabled", "fp16.enabled"}) {
    EXPECT_THAT(Refused(key), HasSubstr("its checkpoints fit no other value; allowed: "
                                        "optimizer.params.*, optimizer.no_weight_decay"))
        << key;
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
