#include "runtime/plan/config/data_sources.h"

#include "base/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::plan::data_sources_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

absl::StatusOr<Config> Parse(const std::string& train) {
  return Config::Parse("{\"train_batch_size\": 1, \"data\": {\"train\": " + train + "}}", "f.json",
                       {}, 1);
}

TEST(DataSourcesTest, FilesAreOnePartAsEver) {
  for (const char* const train : {"\"a.bin\"", "[\"a.bin\"]"}) {
    const absl::StatusOr<Config> config = Parse(train);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_THAT(config->data_train(), ElementsAre("a.bin"));
    EXPECT_THAT(config->data_parts(), SizeIs(1));
    EXPECT_EQ(config->values_in_force()["data"]["train"], Json::array({"a.bin"}));
  }
}

TEST(DataSourcesTest, PartsHaveFilesAndWeights) {
  const absl::StatusOr<Config> config =
      Parse(R"([{"files": ["w/*.bin", "x.bin"], "weight": 7}, {"files": "c.bin"}])");
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_THAT(config->data_parts(), SizeIs(2));
  EXPECT_THAT(config->data_parts()[0].files, ElementsAre("w/*.bin", "x.bin"));
  EXPECT_EQ(config->data_parts()[0].weight, 7);
  EXPECT_EQ(config->data_parts()[1].weight, 1);
  EXPECT_THAT(config->data_train(), ElementsAre("w/*.bin", "x.bin", "c.bin"));
  const absl::StatusOr<Config> again =
      Config::Parse(DumpJson(config->values_in_force()), "again.json", {}, 1);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->values_in_force()["data"], config->values_in_force()["data"]);
}

TEST(DataSourcesTest, AnotherWeightIsAnotherRun) {
  const absl::StatusOr<Config> config = Parse(R"([{"files": "a"}, {"files": "b", "weight": 2}])");
  const absl::StatusOr<Config> other = Parse(R"([{"files": "a"}, {"files": "b", "weight": 3}])");
  ASSERT_TRUE(config.ok() && other.ok());
  const auto differences = other->IdentityDifferences(config->values_in_force());
  ASSERT_THAT(differences, SizeIs(1));
  EXPECT_EQ(differences[0].key, "data.train");
}

TEST(DataSourcesTest, BadPartsAreRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"([{"files": "a", "weight": 0}, {"files": "b", "weight": 0}])",
       "the weights of its 2 parts sum to 0"},
      {R"([{"files": "a", "weight": -1}])", "data.train[0] has the weight -1"},
      {R"([{"files": "a", "weight": "x"}])", "data.train[0] has the weight \"x\""},
      {R"([{"files": "a"}, {"weight": 1}])", "data.train[1] has null as \"files\""},
      {R"([{"files": []}])", "data.train[0] has [] as \"files\""},
      {R"([{"files": "a", "wieght": 1}])", "unknown member \"wieght\""},
      {R"(["a", {"files": "b"}])", "want a list of paths, or of parts"},
      {R"([""])", "want a list of paths, or of parts"},
      {R"(5)", "data.train is 5; want a list of paths"}};
  for (const auto& [train, says] : cases) {
    EXPECT_THAT(Parse(train).status().message(), HasSubstr(says)) << train;
  }
}

}  // namespace
}  // namespace dtrain::plan::data_sources_test
