#include "runtime/plan/metrics_line.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::plan::metrics_line_test {
namespace {

using ::testing::HasSubstr;

MetricsRecord Example() {
  MetricsRecord record;
  record.unix_seconds = 1763719200.25;
  record.run = "r-1";
  record.attempt = 2;
  record.rank = 0;
  record.node = "n1";
  record.kind = MetricsKind::kStep;
  record.step = 12;
  record.samples = 384;
  record.metrics = {{"train/loss", 2.31}, {"perf/tokens_per_s", 1.2e5}};
  return record;
}

// Writes a line of metrics in the form that ranks use.
std::string LineOf(const MetricsRecord& record) { return DumpJson(MetricsJson(record)) + "\n"; }

TEST(MetricsLineTest, IsVersionOneByteForByte) {
  EXPECT_EQ(LineOf(Example()),
            R"({"v":1,"ts":1763719200.25,"run":"r-1","attempt":2,"rank":0,"node":"n1",)"
            R"("kind":"step","step":12,"samples":384,)"
            R"("m":{"train/loss":2.31,"perf/tokens_per_s":120000.0}})"
            "\n");
}

TEST(MetricsLineTest, ReadsBackWhatItWrote) {
  for (const MetricsKind kind : {MetricsKind::kStep, MetricsKind::kEval, MetricsKind::kCheckpoint,
                                 MetricsKind::kEvent, MetricsKind::kConfig}) {
    MetricsRecord record = Example();
    record.kind = kind;
    record.run = "quote \" and \n line";
    const absl::StatusOr<MetricsRecord> again = ParseMetricsLine(LineOf(record));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->run, record.run);
    EXPECT_EQ(again->kind, kind);
    EXPECT_EQ(again->metrics, record.metrics);
    EXPECT_EQ(again->unix_seconds, record.unix_seconds);
    EXPECT_EQ(again->samples, 384);
    EXPECT_EQ(again->step, 12);
    EXPECT_EQ(again->attempt, 2);
    EXPECT_EQ(again->rank, 0);
    EXPECT_EQ(again->node, "n1");
  }
}

TEST(MetricsLineTest, TakesNumbersUpToTheirTypesAndNoFurther) {
  MetricsRecord record = Example();
  record.attempt = record.rank = std::numeric_limits<int>::max();
  record.step = record.samples = std::numeric_limits<int64_t>::max();
  const absl::StatusOr<MetricsRecord> again = ParseMetricsLine(LineOf(record));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->attempt, record.attempt);
  EXPECT_EQ(again->rank, record.rank);
  EXPECT_EQ(again->step, record.step);
  EXPECT_EQ(again->samples, record.samples);
  for (const char* const field : {"attempt", "rank"}) {
    Json json = MetricsJson(Example());
    json[field] = int64_t{1} << 31;
    EXPECT_THAT(std::string(ParseMetricsLine(json.dump()).status().message()),
                HasSubstr("an integer from 0 to 2147483647"));
  }
}

TEST(MetricsLineTest, EveryFieldMustBeThereAndOfItsType) {
  for (const char* const field :
       {"v", "ts", "run", "attempt", "rank", "node", "kind", "step", "samples", "m"}) {
    Json json = MetricsJson(Example());
    json[field] = Json::array();
    const std::string wrong(ParseMetricsLine(json.dump()).status().message());
    EXPECT_THAT(wrong, HasSubstr(std::string("\"") + field + "\""));
    json.erase(std::string(field));
    EXPECT_EQ(std::string(ParseMetricsLine(json.dump()).status().message()), wrong) << field;
  }
}

TEST(MetricsLineTest, KeepsNumbersThatAreNotFinite) {
  MetricsRecord record = Example();
  record.metrics = {{"a", std::nan("")}, {"b", INFINITY}, {"c", -INFINITY}};
  const std::string line = LineOf(record);
  EXPECT_THAT(line, HasSubstr(R"({"a":"NaN","b":"Infinity","c":"-Infinity"})"));
  const absl::StatusOr<MetricsRecord> again = ParseMetricsLine(line);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(std::isnan(again->metrics[0].second));
  EXPECT_EQ(again->metrics[1].second, INFINITY);
  EXPECT_EQ(again->metrics[2].second, -INFINITY);
}

TEST(MetricsLineTest, IgnoresUnknownKeysAndNamesWrongOnes) {
  const std::string good = LineOf(Example());
  std::string more = good;
  more.insert(1, R"("later":{"x":[1]},)");
  EXPECT_TRUE(ParseMetricsLine(more).ok());
  const auto changed = [&](const char* from, const char* to) {
    std::string line = good;
    line.replace(line.find(from), std::string(from).size(), to);
    return std::string(ParseMetricsLine(line).status().message());
  };
  EXPECT_THAT(changed("\"v\":1", "\"v\":2"), HasSubstr("version 2, want 1"));
  EXPECT_THAT(changed("\"step\":12", "\"step\":-1"), HasSubstr("\"step\""));
  EXPECT_THAT(changed("\"step\":12", "\"stop\":12"), HasSubstr("\"step\""));
  EXPECT_THAT(changed("\"kind\":\"step\"", "\"kind\":\"x\""), HasSubstr("\"kind\""));
  EXPECT_THAT(changed("2.31", "\"2.31\""), HasSubstr("\"m.train/loss\""));
  EXPECT_THAT(changed("\"node\":\"n1\"", "\"node\":1"), HasSubstr("\"node\""));
}

TEST(MetricsLineTest, EveryTornLineIsAnError) {
  const std::string line = LineOf(Example());
  for (size_t length = 0; length + 2 <= line.size(); ++length) {
    EXPECT_FALSE(ParseMetricsLine(line.substr(0, length)).ok()) << length;
  }
}

}  // namespace
}  // namespace dtrain::plan::metrics_line_test
