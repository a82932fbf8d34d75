#include "runtime/plan/metrics_line.h"

#include <cmath>
#include <limits>
#include <string>
#include <utility>

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

TEST(MetricsLineTest, HoldsWhatTheRecordDoes) {
  const std::pair<MetricsKind, const char*> kinds[] = {{MetricsKind::kStep, "step"},
                                                       {MetricsKind::kEval, "eval"},
                                                       {MetricsKind::kCheckpoint, "ckpt"},
                                                       {MetricsKind::kEvent, "event"},
                                                       {MetricsKind::kConfig, "config"}};
  for (const auto& [kind, name] : kinds) {
    MetricsRecord record = Example();
    record.kind = kind;
    record.run = "quote \" and \n line";
    record.rank = std::numeric_limits<int>::max();
    record.samples = std::numeric_limits<int64_t>::max();
    record.details["host"] = "n1";
    const std::string line = LineOf(record);
    EXPECT_EQ(line.find('\n'), line.size() - 1) << "one line";
    const absl::StatusOr<Json> json = ParseJson(line, "line");
    ASSERT_TRUE(json.ok()) << json.status();
    EXPECT_EQ(json->at("run").get<std::string>(), record.run);
    EXPECT_EQ(json->at("kind").get<std::string>(), name);
    EXPECT_EQ(json->at("rank").get<int>(), record.rank);
    EXPECT_EQ(json->at("samples").get<int64_t>(), record.samples);
    EXPECT_EQ(json->at("host").get<std::string>(), "n1");
  }
}

TEST(MetricsLineTest, KeepsNumbersThatAreNotFinite) {
  MetricsRecord record = Example();
  record.metrics = {{"a", std::nan("")}, {"b", INFINITY}, {"c", -INFINITY}};
  EXPECT_THAT(LineOf(record), HasSubstr(R"({"a":"NaN","b":"Infinity","c":"-Infinity"})"));
}

}  // namespace
}  // namespace dtrain::plan::metrics_line_test
