// A run whose length is given in epochs: the number of steps, what follows from it, what may stand
// beside it, and the names by which other frameworks know it.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/numeric/epoch_steps.h"
#include "dtrain/config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::config_epochs_test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

absl::StatusOr<Config> Parsed(const std::string& keys, const std::vector<std::string>& sets = {}) {
  return Config::Parse(absl::StrCat(R"({"train_batch_size": 8, )", keys, "}"), "run.json", sets, 2);
}

Config Counted(const std::string& keys, double steps, const std::vector<std::string>& sets = {}) {
  const absl::StatusOr<Config> config = Parsed(keys, sets);
  EXPECT_TRUE(config.ok()) << config.status();
  absl::StatusOr<Config> counted = config->WithStepsPerEpoch(steps);
  EXPECT_TRUE(counted.ok()) << counted.status();
  return *std::move(counted);
}

int64_t Integer(const Config& config, const char* key) { return config.Find(key)->get<int64_t>(); }

// Counted by hand: epochs * steps, rounded up.
TEST(StepsOfEpochs, AreRoundedUpAndAtLeastOne) {
  EXPECT_EQ(StepsOfEpochs(3, 643), 1929);
  EXPECT_EQ(StepsOfEpochs(0.5, 643), 322);
  EXPECT_EQ(StepsOfEpochs(3, 2.5), 8) << "steps that reach into the next epoch";
  EXPECT_EQ(StepsOfEpochs(0.01, 3), 1);
  EXPECT_EQ(StepsOfEpochs(1e300, 1e300), int64_t{1} << 53);
  // In floating point these products are a little more than the whole number.
  EXPECT_EQ(StepsOfEpochs(0.1, 30), 3);
  EXPECT_EQ(StepsOfEpochs(1.1, 10), 11);
  EXPECT_EQ(StepsOfEpochs(0.7, 10), 7);
  EXPECT_EQ(StepsOfEpochs(1, 1e9 + 0.001), 1'000'000'001) << "a real part of a step counts";
}

TEST(ConfigEpochsTest, TheStepsAreKnownOnceTheDataAre) {
  const Config waiting = *Parsed(R"("train_epochs": 3, "eval_interval": 100)");
  EXPECT_EQ(waiting.train_epochs(), 3);
  EXPECT_EQ(waiting.train_steps(), 0);
  EXPECT_THAT(waiting.Summary(), Not(HasSubstr("train_steps")));
  const Config counted = *waiting.WithStepsPerEpoch(643);
  EXPECT_EQ(counted.train_steps(), 1929);
  EXPECT_EQ(counted.OriginOf("train_steps"), ConfigOrigin::kDerived);
  EXPECT_TRUE(counted.evaluate_at(1929)) << "the last step";
  EXPECT_EQ(counted.global_batch(), 8);
  EXPECT_EQ(counted.world_size(), 2);
  const Config plain = *Parsed(R"("train_steps": 30)");
  EXPECT_EQ(plain.train_epochs(), 0);
  EXPECT_EQ(plain.WithStepsPerEpoch(643)->train_steps(), 30);
  EXPECT_EQ(Parsed(R"("seed": 1)")->train_steps(), 1000) << "today's default";
}

TEST(ConfigEpochsTest, TheScheduleFollows) {
  const Config cosine = Counted(R"("train_epochs": 2, "scheduler": {"type": "WarmupCosineLR",
      "params": {"warmup_num_steps": "auto"}})",
                                250);
  EXPECT_EQ(cosine.scheduler().total_num_steps, 500);
  EXPECT_EQ(cosine.scheduler().warmup_num_steps, 10);
  const Config given = Counted(R"("train_epochs": 2, "scheduler": {"type": "WarmupDecayLR",
      "params": {"total_num_steps": 400, "warmup_num_steps": 7}})",
                               250);
  EXPECT_EQ(given.train_steps(), 500);
  EXPECT_EQ(given.scheduler().total_num_steps, 400);
  EXPECT_EQ(given.scheduler().warmup_num_steps, 7);
  const Config stable = Counted(R"("train_epochs": 2, "scheduler": {"type": "WSD"})", 250);
  EXPECT_EQ(stable.scheduler().total_num_steps, 500);
  EXPECT_EQ(stable.scheduler().decay_num_steps, 50);
  EXPECT_EQ(stable.scheduler().warmup_num_steps, 10);
  // A schedule that does not fit into the number is refused when the number is known.
  const Config waiting = *Parsed(R"("train_epochs": 1, "scheduler": {"type": "WSD",
      "params": {"warmup_num_steps": 30, "decay_num_steps": 20}})");
  EXPECT_TRUE(waiting.WithStepsPerEpoch(50).ok());
  EXPECT_THAT(std::string(waiting.WithStepsPerEpoch(49).status().message()),
              HasSubstr("warmup_num_steps 30 + decay_num_steps 20 are more than total_num_steps "
                        "49"));
}

TEST(ConfigEpochsTest, NotesNameNumbersOnlyWhenTheyAreKnown) {
  const Config waiting = *Parsed(R"("train_epochs": 1, "scheduler": {"type": "WarmupCosineLR",
      "params": {"warmup_num_steps": "auto", "total_num_steps": "auto"}})");
  EXPECT_THAT(waiting.warnings(), Not(Contains(HasSubstr("_num_steps"))));
  EXPECT_THAT(waiting.WithStepsPerEpoch(500)->warnings(),
              Contains(HasSubstr("warmup_num_steps is \"auto\": dtrain takes 10")));
}

TEST(ConfigEpochsTest, StepsAndEpochsTogetherAreRefused) {
  const std::pair<std::string, std::vector<std::string>> both[] = {
      {R"("train_steps": 30, "train_epochs": 3)", {}},
      {R"("seed": 1)", {"train_steps=30", "train_epochs=3"}},
      {R"("seed": 1)", {"train_epochs=3", "train_steps=30"}}};
  for (const auto& [keys, sets] : both) {
    const std::string message(Parsed(keys, sets).status().message());
    EXPECT_THAT(message,
                HasSubstr("train_steps 30 and train_epochs 3 both say how long the run is; "
                          "keep one"));
    EXPECT_FALSE(absl::StrContains(message, "\n"));
  }
  for (const char* const value : {"0", "-1", "\"three\"", "[1]"}) {
    EXPECT_THAT(std::string(Parsed(absl::StrCat("\"train_epochs\": ", value)).status().message()),
                HasSubstr("train_epochs is "))
        << value;
  }
}

// A user of `dtrain train --set train_epochs=1` does not know that its file has train_steps.
TEST(ConfigEpochsTest, OneBySetTakesThePlaceOfTheFilesOther) {
  EXPECT_EQ(Counted(R"("train_steps": 30)", 10, {"train_epochs=0.5"}).train_steps(), 5);
  const Config steps = *Parsed(R"("train_epochs": 3)", {"train_steps=30"});
  EXPECT_EQ(steps.train_steps(), 30);
  EXPECT_EQ(steps.train_epochs(), 0);
  EXPECT_EQ(Counted(R"("train_epochs": 3)", 10, {"train_steps=null"}).train_steps(), 30);
}

// config.json of a run directory holds both numbers.
TEST(ConfigEpochsTest, ValuesInForceReadBackGiveTheSame) {
  const std::string keys = R"("train_epochs": 3, "scheduler": {"type": "WarmupCosineLR"})";
  const Json written = Counted(keys, 10).values_in_force();
  EXPECT_EQ(written["train_steps"], 30);
  const auto read = Config::Parse(DumpJson(written), "config.json", {}, 2);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->train_steps(), 0);
  EXPECT_EQ(read->train_epochs(), 3);
  EXPECT_EQ(Integer(*read->WithStepsPerEpoch(10), "train_steps"), 30);
}

// A run's config.json with another length is a run of that length to the end of its schedule, where
// that followed from the length; what the user chose stays.
TEST(ConfigEpochsTest, AScheduleThatFollowedFromTheLengthFollowsFromTheNewOne) {
  const auto again = [](const std::string& keys, const std::string& set) {
    const Json written = Parsed(R"("train_steps": 1000, "scheduler": )" + keys)->values_in_force();
    const auto read = Config::Parse(DumpJson(written), "config.json", {set}, 2);
    EXPECT_TRUE(read.ok()) << read.status();
    return read->train_epochs() > 0 ? *read->WithStepsPerEpoch(50) : *read;
  };
  const std::string cosine =
      R"({"type": "WarmupCosineLR", "params": {"warmup_num_steps": "auto"}})";
  for (const auto& [set, steps] :
       {std::pair("train_epochs=2", 100), std::pair("train_steps=300", 300)}) {
    EXPECT_EQ(again(cosine, set).scheduler().total_num_steps, steps) << set;
    EXPECT_EQ(again(cosine, set).scheduler().warmup_num_steps, steps / 50) << set;
    const Config stable = again(R"({"type": "WSD"})", set);
    EXPECT_EQ(stable.scheduler().total_num_steps, steps) << set;
    EXPECT_EQ(stable.scheduler().decay_num_steps, steps / 10) << set;
    EXPECT_EQ(stable.scheduler().warmup_num_steps, steps / 50) << set;
    const Config chosen = again(R"({"type": "WarmupDecayLR",
        "params": {"total_num_steps": 700, "warmup_num_steps": 7}})",
                                set);
    EXPECT_EQ(chosen.train_steps(), steps) << set;
    EXPECT_EQ(chosen.scheduler().total_num_steps, 700) << set;
    EXPECT_EQ(chosen.scheduler().warmup_num_steps, 7) << set;
  }
  // Without another length, it is the same run.
  const Config saved = *Parsed(R"("train_steps": 1000, "scheduler": )" + cosine);
  const Config same =
      *Config::Parse(DumpJson(saved.values_in_force()), "config.json", {"train_steps=1000"}, 2);
  EXPECT_EQ(same.IdentityDifference(saved.values_in_force()), std::nullopt);
  EXPECT_EQ(same.scheduler().total_num_steps, 1000);
}

// A resumed run is compared before its data are open, with records that hold the numbers.
TEST(ConfigEpochsTest, AResumedRunIsTheSameBeforeAndAfterTheStepsAreKnown) {
  for (const char* const schedule :
       {R"({"type": "WSD"})", R"({"type": "WarmupDecayLR"})",
        R"({"type": "WarmupCosineLR", "params": {"warmup_num_steps": "auto"}})"}) {
    const std::string scheduler = absl::StrCat(R"(, "scheduler": )", schedule);
    const Config waiting = *Parsed(R"("train_epochs": 3)" + scheduler);
    const Config counted = *waiting.WithStepsPerEpoch(100);
    EXPECT_EQ(waiting.IdentityDifference(counted.values_in_force()), std::nullopt) << schedule;
    EXPECT_EQ(waiting.identity_hash(), counted.identity_hash()) << schedule;
    // More epochs go on with the run, as more steps do.
    const Config longer = *Parsed(R"("train_epochs": 5)" + scheduler);
    EXPECT_EQ(longer.IdentityDifference(counted.values_in_force()), std::nullopt) << schedule;
    const Config in_steps = *Parsed(R"("train_steps": 900)" + scheduler);
    EXPECT_EQ(in_steps.IdentityDifference(counted.values_in_force()), std::nullopt) << schedule;
  }
}

TEST(ConfigEpochsTest, NamesOfOtherFrameworksAreAnsweredWithTheKey) {
  const std::pair<const char*, const char*> names[] = {
      {"num_train_epochs", "train_epochs"},
      {"epochs", "train_epochs"},
      {"num_epochs", "train_epochs"},
      {"train_epoch", "train_epochs"},
      {"max_steps", "train_steps"},
      {"max_train_steps", "train_steps"},
      {"max_iters", "train_steps"},
      {"learning_rate", "optimizer.params.lr"},
      {"max_grad_norm", "gradient_clipping"},
      {"save_steps", "checkpoint.interval"},
      {"block_size", "data.sequence_length"},
      {"per_device_train_batch_size", "train_micro_batch_size_per_gpu"}};
  for (const auto& [name, key] : names) {
    EXPECT_THAT(
        std::string(Parsed(absl::StrCat("\"", name, "\": 3")).status().message()),
        HasSubstr(absl::StrCat("unknown key \"", name, "\"; nearest known key: \"", key, "\"")));
    EXPECT_NE(Parsed(R"("seed": 1)")->Find(key), nullptr) << key;
  }
}

}  // namespace
}  // namespace dtrain::config_epochs_test
