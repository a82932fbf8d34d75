#include "runtime/plan/config_docs.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "dtrain/config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/plan/config_keys.h"

namespace dtrain::plan {
namespace {

using ::testing::HasSubstr;

TEST(ConfigDocsTest, TheDocumentInTheTreeIsUpToDate) {
  const absl::StatusOr<std::string> text = ReadFile(DTRAIN_SOURCE_DIR "/docs/CONFIG.md");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, ConfigMarkdown())
      << "write it anew: build/<preset>/bin/dtrain-config docs > docs/CONFIG.md";
}

TEST(ConfigDocsTest, DocumentNamesEveryKeyOnce) {
  const std::string text = ConfigMarkdown();
  for (const ConfigKey& key : ConfigKeys()) {
    const std::string row = absl::StrCat("\n| `", key.path, "` | ");
    const size_t first = text.find(row);
    ASSERT_NE(first, std::string::npos) << key.path;
    EXPECT_EQ(text.find(row, first + 1), std::string::npos) << key.path;
  }
}

TEST(ConfigTableTest, EveryRowIsConsistent) {
  std::set<std::string> paths;
  for (const ConfigKey& key : ConfigKeys()) {
    EXPECT_TRUE(paths.insert(key.path).second) << key.path << " twice";
    EXPECT_EQ(FindConfigKey(key.path), &key);
    EXPECT_FALSE(IsConfigSection(key.path)) << key.path << " is key and section";
    EXPECT_GT(std::string(key.doc).size(), 5u) << key.path;
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

}  // namespace
}  // namespace dtrain::plan
