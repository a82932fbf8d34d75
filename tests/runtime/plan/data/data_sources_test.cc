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

TEST(DataSourcesTest, RanksWaitForFilesAtAddressesAsLongAsTheseAreTried) {
  const absl::StatusOr<Config> local = Parse("\"a.bin\"");
  ASSERT_TRUE(local.ok()) << local.status();
  EXPECT_EQ(local->comm_timeout_min_seconds(), std::nullopt);
  EXPECT_EQ(local->comm_hang_data_timeout_seconds(), std::nullopt);
  for (const char* const train :
       {R"(["a.bin", "s3://bucket/b.bin"])", R"([{"files": "https://host/c.bin"}])"}) {
    const absl::StatusOr<Config> remote = Parse(train);
    ASSERT_TRUE(remote.ok()) << remote.status();
    EXPECT_EQ(remote->data_remote().timeout_seconds, 60);
    EXPECT_EQ(remote->comm_hang_data_timeout_seconds(), 70);
    EXPECT_EQ(remote->comm_timeout_min_seconds(), 150);
  }
  const absl::StatusOr<Config> set = Config::Parse(
      R"({"train_batch_size": 1, "comm": {"timeout_min_s": 5, "hang_data_timeout_s": 6},
          "data": {"train": [], "validation": ["http://host/c.bin"], "remote_timeout_s": 300}})",
      "f.json", {}, 1);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->comm_timeout_min_seconds(), 5);
  EXPECT_EQ(set->comm_hang_data_timeout_seconds(), 6);
  const absl::StatusOr<Config> longer = Config::Parse(
      R"({"train_batch_size": 1, "data": {"train": "s3://b/c", "remote_timeout_s": 300}})",
      "f.json", {}, 1);
  ASSERT_TRUE(longer.ok()) << longer.status();
  EXPECT_EQ(longer->comm_timeout_min_seconds(), 315);
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
