// Tests by which values a resumed run is compared with the saved one, which of them may change, and
// the errors of wrong requests.
#include "runtime/plan/config/accepted_changes.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "dtrain/config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/plan/config/config_keys.h"

namespace dtrain::plan::accepted_changes_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StrEq;

Config Parsed(absl::string_view text, const std::vector<std::string>& overrides = {},
              int world_size = 2) {
  absl::StatusOr<Config> config = Config::Parse(text, "run.json", overrides, world_size);
  EXPECT_TRUE(config.ok()) << config.status();
  return *std::move(config);
}

TEST(ConfigIdentity, IgnoresLengthIntervalsAndTheSplitOverRanks) {
  const char* text = R"({"train_batch_size": 8, "scheduler": {"type": "WarmupCosineLR"},
                         "model": {"layers": 4, "heads": 2}})";
  const Config base = Parsed(text, {}, 2);
  for (const char* set :
       {"train_steps=7", "eval_interval=3", "metrics.interval=2", "comm.timeout_s=9",
        "checkpoint.interval=5", "train_micro_batch_size_per_gpu=1"}) {
    const Config other = Parsed(text, {set}, 4);
    EXPECT_EQ(base.identity_hash(), other.identity_hash()) << set;
    EXPECT_EQ(other.IdentityDifference(base.values_in_force()), std::nullopt) << set;
  }
  // The order of the keys of the user's part says nothing.
  EXPECT_EQ(base.identity_hash(),
            Parsed(R"({"model": {"heads": 2, "layers": 4}, "train_batch_size": 8,
                       "scheduler": {"type": "WarmupCosineLR"}})")
                .identity_hash());
}

// Masters and states go on in any precision; what belongs to one alone comes and goes with it.
TEST(ConfigIdentity, IgnoresThePrecisionWithItsSettings) {
  const char* text = R"({"train_batch_size": 8})";
  const std::vector<std::string> ways[] = {
      {},
      {"bf16.enabled=true"},
      {"bf16.enabled=true", "bf16.cast_buffers=true", "bf16.bf16_optimizer_states=true",
       "bf16.stochastic_rounding=true"},
      {"fp16.enabled=true", "fp16.initial_scale_power=8", "fp16.loss_scale_window=5"}};
  for (const auto& was : ways) {
    for (const auto& now : ways) {
      const bool same_type = was.empty() == now.empty() && (was.empty() || was[0] == now[0]);
      const auto difference =
          Parsed(text, now).IdentityDifference(Parsed(text, was).values_in_force());
      const bool rounds_otherwise = same_type && was.size() != now.size();
      EXPECT_EQ(difference.has_value(), rounds_otherwise) << difference.value_or("");
    }
  }
  // The type in a model's settings is one of a file that was written in some precision.
  const Config typed = Parsed(text, {"model.torch_dtype=float32", "model.layers=2"});
  EXPECT_EQ(Parsed(text, {"bf16.enabled=true", "model.layers=2"})
                .IdentityDifference(typed.values_in_force()),
            std::nullopt);
  // A run that stays in fp16 keeps its scale.
  const Config fp16 = Parsed(text, {"fp16.enabled=true"});
  EXPECT_EQ(Parsed(text, {"fp16.enabled=true", "fp16.initial_scale_power=8"})
                .IdentityDifference(fp16.values_in_force()),
            "fp16.initial_scale_power was 16, now 8");
}

// In the program's sections each value is a difference of its own, whatever it is inside of.
TEST(ConfigIdentity, HasEachDifferenceOfTheProgramsSections) {
  const char* text = R"({"train_batch_size": 8,
      "model": {"layers": 4, "rope": {"theta": 1, "type": "a"}, "gone": true},
      "finetune": {"lora": {"r": 8}}, "sample": {"tokens": 5}})";
  const Config base = Parsed(text, {}, 2);
  const Config other =
      Parsed(R"({"train_batch_size": 8, "model": {"layers": 4, "rope": {"theta": 2, "type": "a"}},
                 "finetune": {"lora": {"r": 8, "lora_dropout": 0.5}}, "sample": {"tokens": 6},
                 "optimizer": {"params": {"betas": [0.5, 0.5]}}})",
             {}, 2);
  std::vector<std::string> texts;
  for (const ConfigDifference& difference : other.IdentityDifferences(base.values_in_force())) {
    texts.push_back(difference.text);
    EXPECT_EQ(difference.text.substr(0, difference.text.find(' ')), difference.key);
  }
  EXPECT_THAT(texts, ElementsAre("optimizer.params.betas was [0.9,0.999], now [0.5,0.5]",
                                 "model.gone was true, now absent", "model.rope.theta was 1, now 2",
                                 "finetune.lora.lora_dropout was absent, now 0.5"));
  const auto theta = other.IdentityDifferences(base.values_in_force())[2];
  EXPECT_EQ(theta.was, 1);
  EXPECT_EQ(theta.now, 2);
}

TEST(ConfigIdentity, NamesTheFirstDifferingKey) {
  const char* text = R"({"train_micro_batch_size_per_gpu": 4, "model": {"layers": 4}})";
  const Config base = Parsed(text, {}, 2);
  const struct {
    const char* set;
    const char* says;
  } cases[] = {{"optimizer.params.lr=0.5", "optimizer.params.lr was 0.001, now 0.5"},
               {"model.layers=6", "model.layers was 4, now 6"},
               {"model.heads=6", "model.heads was absent, now 6"},
               {"seed=5", "seed was 1234, now 5"},
               {"data.sequence_length=8", "data.sequence_length was 1024, now 8"}};
  for (const auto& c : cases) {
    const Config other = Parsed(text, {c.set}, 2);
    EXPECT_NE(base.identity_hash(), other.identity_hash()) << c.set;
    EXPECT_EQ(other.IdentityDifference(base.values_in_force()), c.says);
  }
  EXPECT_EQ(Parsed(text, {}, 3).IdentityDifference(base.values_in_force()),
            "train_batch_size was 8, now 12");
}

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
                                "model.attn_pdrop",
                                "model.attention_dropout",
                                "model.text.hidden_dropout",
                                "finetune.lora.lora_dropout",
                                "bf16.stochastic_rounding",
                                "zero_optimization.zero_quantized_weights",
                                "zero_optimization.zero_quantized_gradients"}) {
    EXPECT_TRUE(CheckAcceptable(key).ok()) << key << ": " << CheckAcceptable(key);
  }
}

TEST(AcceptedChanges, WhatTheCheckpointIsMadeOfMayNotAndTheReasonIsItsOwn) {
  const std::pair<const char*, const char*> keys[] = {
      {"optimizer.type",
       "because its checkpoints hold the states of one optimizer, which mean nothing to another; "
       "allowed: optimizer.params.*, "},
      {"optimizer.skip_unused_parameters",
       "because its checkpoints count the updates that each parameter has missed only where "},
      {"model",
       "because its checkpoints are of one model with its settings, shares of dropout aside; "},
      {"model.hidden_size", "because its checkpoints are of one model with its settings"},
      {"model.dropout.scheme", "; a new run can start from their weights"},
      {"finetune.lora.r", "; a new run can start from their weights"},
      {"seed", "because its checkpoints hold a position in the data, whose order and windows"},
      {"data.sequence_length", "because its checkpoints hold a position in the data"},
      {"module_buffers", "because it decides which ranks' buffers its checkpoints hold"},
      {"fp16.initial_scale_power",
       "because it is the scale of the first step alone: a resumed run goes on from the scale"}};
  for (const auto& [key, says] : keys) {
    EXPECT_THAT(Refused(key), HasSubstr(says)) << key;
  }
}

// Every key that a resumed run is compared by is of one of the two kinds, and of one alone; every
// other key, and every section without such a key, may change anyway.
TEST(AcceptedChanges, EachKeyOfARunHasAReasonOrMayChange) {
  const auto kind = [](const std::string& key) {
    const absl::Status status = CheckAcceptable(key);
    return status.ok() ? "allowed"
           : absl::StrContains(status.message(), "a resumed run must keep it, because it") ? "kept"
           : absl::StrContains(status.message(), "may change whenever a run is resumed")
               ? "free"
               : "unknown";
  };
  std::set<std::string> sections;
  for (const ConfigKey& key : ConfigKeys()) {
    const std::string path = key.path;
    if ((key.flags & kIdentity) != 0) {
      EXPECT_THAT(kind(path), ::testing::AnyOf(StrEq("allowed"), StrEq("kept"))) << path;
    } else {
      EXPECT_THAT(kind(path), ::testing::AnyOf(StrEq("allowed"), StrEq("free"))) << path;
    }
    for (size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', dot + 1)) {
      sections.insert(path.substr(0, dot));
    }
  }
  EXPECT_GT(sections.size(), 10U);
  for (const std::string& section : sections) {
    EXPECT_THAT(kind(section), ::testing::AnyOf(StrEq("allowed"), StrEq("free"))) << section;
  }
}

TEST(AcceptedChanges, WhatMayChangeAnywayAndWhatIsNoKeyAreToldSo) {
  EXPECT_THAT(Refused("metrics.interval"),
              HasSubstr("--accept-change metrics.interval: this key may change whenever a run is "
                        "resumed; leave the option out"));
  for (const char* const key : {"metrics", "sample", "sample.tokens", "checkpoint.interval",
                                "bf16.enabled", "fp16.cast_buffers"}) {
    EXPECT_THAT(Refused(key), HasSubstr("this key may change whenever a run is resumed")) << key;
  }
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

// Only a share of dropout has neither weights nor states: a program may call something else so.
TEST(AcceptedChanges, ASettingOfTheProgramsIsAShareOfDropoutIfItIsANumber) {
  const auto acceptable = [](const std::string& key, const Json& was, const Json& now) {
    return IsAcceptable({.key = key, .was = was, .now = now, .text = ""});
  };
  EXPECT_TRUE(acceptable("model.attn_pdrop", Json(0.1), Json(0)));
  EXPECT_TRUE(acceptable("model.attn_pdrop", Json(), Json(0.1))) << "it was the model's default";
  EXPECT_TRUE(acceptable("finetune.lora.lora_dropout", Json(0.1), Json()));
  EXPECT_FALSE(acceptable("model.dropout", Json("learned"), Json(0.1)));
  EXPECT_FALSE(acceptable("model.dropout", Json(0.1), Json::object()));
  EXPECT_FALSE(acceptable("model.dropouts", Json(0.1), Json(0.2)));
  EXPECT_FALSE(acceptable("model.hidden_size", Json(64), Json(32)));
  const ConfigDifference lora{
      .key = "finetune.lora.lora_dropout", .was = Json(0.1), .now = Json(0.2), .text = ""};
  EXPECT_TRUE(IsAccepted(lora, {"finetune.lora.lora_dropout"}));
  EXPECT_FALSE(IsAccepted(lora, {"model.lora_dropout"}));
}

// The reasons of differences that no key alone has.
TEST(AcceptedChanges, WhatMayNotComeOrGoHasAReasonToo) {
  EXPECT_EQ(WhyKept("optimizer.params.momentum"),
            "its checkpoints hold a momentum of each weight only where it is not 0");
  EXPECT_THAT(WhyKept("model.dropout"), HasSubstr("its checkpoints are of one model"));
}

}  // namespace
}  // namespace dtrain::plan::accepted_changes_test
