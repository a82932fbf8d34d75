#include "runtime/plan/config/config_docs.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "dtrain/config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/plan/config/config_keys.h"
#include "runtime/plan/config/reference_docs.h"

namespace dtrain::plan::config_docs_test {
namespace {

using ::testing::HasSubstr;

TEST(ConfigDocsTest, ThePagesInTheTreeAreUpToDate) {
  const struct {
    const char* file;
    const char* page;
    std::string text;
  } pages[] = {{"CONFIG.md", "config", ConfigMarkdown()},
               {"METRICS.md", "metrics", MetricsMarkdown()},
               {"ENVIRONMENT.md", "environment", EnvironmentMarkdown()}};
  for (const auto& page : pages) {
    const absl::StatusOr<std::string> text =
        ReadFile(absl::StrCat(DTRAIN_SOURCE_DIR "/docs/", page.file));
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(*text, page.text) << "write it anew: build/<preset>/bin/dtrain-config docs "
                                << page.page << " > docs/" << page.file;
  }
}

TEST(ConfigDocsTest, TheSmallCompleteFileIsAccepted) {
  const std::string text = ConfigMarkdown();
  const std::string fence = "```json\n";
  const size_t begin = text.find(fence) + fence.size();
  const std::string file = text.substr(begin, text.find("```", begin) - begin);
  const absl::StatusOr<Config> config = Config::Parse(file, "CONFIG.md", {}, /*world_size=*/2);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->warnings().empty());
}

TEST(ConfigDocsTest, DocumentNamesEveryKeyOnce) {
  const std::string text = ConfigMarkdown();
  for (const ConfigKey& key : ConfigKeys()) {
    const std::string row = absl::StrCat("\n| `", key.path, "` | ");  // In one of the tables.
    const size_t first = text.find(row);
    ASSERT_NE(first, std::string::npos) << key.path;
    EXPECT_EQ(text.find(row, first + 1), std::string::npos) << key.path;
  }
}

// A text is read alone, so it is one or more whole sentences, not a fragment of the table's
// heading.
void ExpectFullSentences(const ConfigKey& key) {
  const std::string doc = key.doc;
  EXPECT_GE(std::count(doc.begin(), doc.end(), ' '), 2) << key.path << ": " << doc;
  EXPECT_EQ(doc.back(), '.') << key.path << ": " << doc;
  EXPECT_EQ(doc.find("  "), std::string::npos) << key.path << ": " << doc;
  for (const char* fragment : {"Of ", "Without effect", "Absent:", "Same ", "so many", "foretell",
                               "far tier", "unasked"}) {
    EXPECT_EQ(doc.find(fragment), std::string::npos) << key.path << ": " << doc;
  }
}

TEST(ConfigTableTest, EveryRowIsConsistent) {
  std::set<std::string> paths;
  for (const ConfigKey& key : ConfigKeys()) {
    EXPECT_TRUE(paths.insert(key.path).second) << key.path << " twice";
    EXPECT_EQ(FindConfigKey(key.path), &key);
    EXPECT_FALSE(IsConfigSection(key.path)) << key.path << " is key and section";
    ExpectFullSentences(key);
    EXPECT_EQ(NearestConfigKey(key.path), key.path);
    const Json standard = Json::parse(key.default_value);
    if (!standard.is_null()) {
      const absl::StatusOr<Json> checked = CheckValue(key, standard);
      EXPECT_TRUE(checked.ok()) << checked.status();
    }
    EXPECT_EQ(key.use == KeyUse::kRefused, *key.accepted != '\0') << key.path;
    if (key.use == KeyUse::kRefused) {
      for (const Json& value : Json::parse(key.accepted)) {
        EXPECT_TRUE(CheckValue(key, value).ok()) << key.path;
      }
    }
    // A key that takes "auto" says what becomes of it.
    if ((key.flags & kAutoAllowed) != 0) {
      EXPECT_THAT(key.doc, HasSubstr("\"auto\"")) << key.path;
    }
  }
}

TEST(ConfigTableTest, NumbersAreTakenUpToTheirBoundsAndNotBeyond) {
  int bounds = 0;
  for (const ConfigKey& key : ConfigKeys()) {
    const std::string range = key.range;
    if ((key.type != KeyType::kInteger && key.type != KeyType::kNumber) || range.empty()) {
      continue;
    }
    const size_t comma = range.find(", ");
    const std::string low = range.substr(1, comma - 1);
    const std::string high = range.substr(comma + 2, range.size() - comma - 3);
    for (const auto& [text, is_open, outwards] :
         {std::tuple(low, range.front() == '(', -1), std::tuple(high, range.back() == ')', 1)}) {
      if (text == "inf") {
        continue;
      }
      const double bound = std::stod(text);
      const double step =
          outwards * (key.type == KeyType::kInteger ? 1 : 1e-9 * std::max(1.0, std::abs(bound)));
      EXPECT_EQ(CheckValue(key, bound).ok(), !is_open) << key.path << " " << bound;
      EXPECT_TRUE(CheckValue(key, bound - step).ok()) << key.path << " inside " << bound;
      EXPECT_FALSE(CheckValue(key, bound + step).ok()) << key.path << " beyond " << bound;
      ++bounds;
    }
  }
  EXPECT_GT(bounds, 50);
}

TEST(ConfigTableTest, WhatAKeyMayBeReadsAsWords) {
  const std::pair<const char*, const char*> texts[] = {
      {"train_steps", "an integer, 1 or more"},
      {"zero_optimization.stage", "an integer from 0 to 3"},
      {"optimizer.params.eps", "a number above 0, or \"auto\""},
      {"optimizer.params.betas", "two numbers from 0 to below 1, or \"auto\""},
      {"comm.timeout_s", "a number above 0, up to 86400"},
      {"comm.transport", "one of auto, shm, tcp, rdma"},  // Without nccl, which is refused.
      {"gradient_allreduce_op", "mean"},                  // The only one that is not refused.
      {"checkpoint.journal", "one of off, async, sync"},
      {"checkpoint.dir", "a string"},
      {"seed", "an integer, 0 or more"},
      {"deterministic", "true or false"}};
  for (const auto& [path, text] : texts) {
    EXPECT_EQ(AllowedText(*FindConfigKey(path)), text) << path;
  }
}

// A message shows a value of up to 80 letters; of a longer one it shows the beginning.
TEST(ConfigTableTest, ALongValueIsCutInMessages) {
  const std::string letters(100, 'x');
  EXPECT_EQ(ShortJson(letters.substr(0, 78)), "\"" + letters.substr(0, 78) + "\"");
  EXPECT_EQ(ShortJson(letters.substr(0, 79)), "\"" + letters.substr(0, 76) + "...");
  EXPECT_EQ(ShortJson(letters).size(), 80U);
}

TEST(ConfigTableTest, OlderNamesLeadToKnownKeys) {
  for (const char* older :
       {"bfloat16.enabled", "zero_optimization.stage3_gather_fp16_weights_on_model_save",
        "zero_optimization.prefetch_bucket_size", "scheduler.params.total_steps"}) {
    ASSERT_NE(TodaysName(older), nullptr) << older;
    EXPECT_NE(FindConfigKey(TodaysName(older)), nullptr) << older;
    EXPECT_EQ(FindConfigKey(older), nullptr) << older;
  }
  EXPECT_EQ(TodaysName("train_steps"), nullptr);
}

TEST(ConfigTableTest, NearestKeyFindsTyposAndMisplacedKeys) {
  EXPECT_EQ(NearestConfigKey("train_step"), "train_steps");
  EXPECT_EQ(NearestConfigKey("trian_steps"), "train_steps");
  EXPECT_EQ(NearestConfigKey("lr"), "optimizer.params.lr");
  EXPECT_EQ(NearestConfigKey("optimizer.lr"), "optimizer.params.lr");
  EXPECT_EQ(NearestConfigKey("comm_overlap"), "zero_optimization.overlap_comm");
  EXPECT_EQ(NearestConfigKey("zero_optimization.comm_overlap"), "zero_optimization.overlap_comm");
  EXPECT_EQ(NearestConfigKey("clipping_gradient"), "gradient_clipping");
  EXPECT_EQ(NearestConfigKey("fp16.enable"), "fp16.enabled");
  EXPECT_EQ(NearestConfigKey("zero_optimization.bucket_size_reduce"),
            "zero_optimization.reduce_bucket_size");
  EXPECT_EQ(NearestConfigKey("zero_optimization.offload_optimizer.path_nvme"),
            "zero_optimization.offload_optimizer.nvme_path");
  EXPECT_EQ(NearestConfigKey("optimiser"), "optimizer");
  EXPECT_EQ(NearestConfigKey("data.seq_length"), "data.sequence_length");
  EXPECT_FALSE(NearestConfigKey(std::string(100000, 'x')).empty());  // In bounded time.
}

TEST(ConfigSchemaTest, HasEveryKeyWithItsDefault) {
  const Json schema = ConfigSchema();
  const Json& stage = schema["properties"]["zero_optimization"]["properties"]["stage"]["anyOf"][0];
  EXPECT_EQ(stage, Json::parse(R"({"type":"integer","minimum":0,"maximum":3})"));
  const Json& betas =
      schema["properties"]["optimizer"]["properties"]["params"]["properties"]["betas"];
  EXPECT_EQ(betas["default"], Json::parse("[0.9, 0.999]"));
  EXPECT_EQ(betas["anyOf"][0]["items"],
            Json::parse(R"({"type":"number","minimum":0,"exclusiveMaximum":1})"));
  EXPECT_EQ(schema["additionalProperties"], false);
}

// DeepSpeed takes `"zero_optimization": true` for stage 1; no other section may be a boolean.
TEST(ConfigSchemaTest, OneSectionMayBeABooleanAndEachMayBeNull) {
  const Json schema = ConfigSchema();
  int sections = 0;
  for (const auto& [name, child] : schema["properties"].items()) {
    if (child.contains("properties")) {
      ++sections;
      EXPECT_EQ(child["type"], name == "zero_optimization"
                                   ? Json::array({"object", "boolean", "null"})
                                   : Json::array({"object", "null"}))
          << name;
      EXPECT_EQ(child["additionalProperties"], false) << name;
    }
  }
  EXPECT_GT(sections, 10);
  const Json& older = schema["properties"]["zero_optimization"]["properties"]["cpu_offload"];
  EXPECT_EQ(older["deprecated"], true);
  EXPECT_EQ(older["anyOf"].back(), Json::parse(R"({"type": "boolean"})"));
}

}  // namespace
}  // namespace dtrain::plan::config_docs_test
