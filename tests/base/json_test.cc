// JSON that a hand-written configuration may hold, and the errors for damaged or hostile texts.
#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

namespace dtrain::json_test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string ErrorOf(const std::string& text) {
  const auto json = ParseJson(text, "run.json");
  return json.ok() ? "parsed" : std::string(json.status().message());
}

TEST(ParseJson, TakesCommentsAndKeepsTheOrderOfKeys) {
  const auto json = ParseJson("{ // first\n \"b\": 1, /* then */ \"a\": [2, 3] }", "run.json");
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(DumpJson(*json), R"({"b":1,"a":[2,3]})");
}

TEST(ParseJson, NamesFileLineAndColumnOfASyntaxError) {
  EXPECT_THAT(ErrorOf("{\n  \"a\": 1,\n  \"b\" 2\n}"), StartsWith("run.json:3:7:"));
  EXPECT_THAT(ErrorOf("{\"a\": 1"), StartsWith("run.json:1:8:"));
  EXPECT_THAT(ErrorOf(""), StartsWith("run.json:1:1:"));
}

TEST(ParseJson, RefusesAKeyGivenTwice) {
  EXPECT_THAT(ErrorOf(R"({"lr": 1, "b": {"lr": 2}, "lr": 3})"),
              HasSubstr("key \"lr\" appears twice in one object"));
  EXPECT_EQ(ErrorOf(R"({"lr": 1, "b": {"lr": 2}, "c": [{"lr": 1}, {"lr": 1}]})"), "parsed");
}

TEST(ParseJson, RefusesNestingThatOnlyAnAttackerWrites) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_EQ(ErrorOf(nested(60)), "parsed");
  EXPECT_THAT(ErrorOf(nested(100)), HasSubstr("nested deeper than 64 levels"));
  EXPECT_THAT(ErrorOf(nested(200'000)), HasSubstr("nested deeper than 64 levels"));
}

TEST(ParseJson, RefusesWhatFollowsTheDocument) {
  const std::string document = "{\"a\": 1}\n";
  EXPECT_EQ(ErrorOf(document + " // the end\n"), "parsed");
  EXPECT_THAT(ErrorOf(document + "x"), StartsWith("run.json:2:1:"));
  EXPECT_THAT(ErrorOf(document + "{\"a\": 2}"), StartsWith("run.json:2:1:"));
  for (const std::string& rest : {std::string(1, '\0'), std::string("\0{\"a\": 2}", 9)}) {
    EXPECT_THAT(ErrorOf(document + rest), StartsWith("run.json:2:1: a zero byte"));
  }
  EXPECT_THAT(ErrorOf(std::string("{\"a\": \"\0\"}", 10)), HasSubstr("a zero byte"));
}

TEST(ParseJson, RefusesNumbersBeyondDouble) {
  EXPECT_THAT(ErrorOf("{\"lr\": 1e999}"), HasSubstr("run.json: "));
}

TEST(DumpJson, WritesNonFiniteNumbersAsStrings) {
  const Json json = {
      {"nan", std::nan("")},
      {"list",
       {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(), 1.5}}};
  EXPECT_EQ(DumpJson(json), R"({"nan":"NaN","list":["Infinity","-Infinity",1.5]})");
}

TEST(DumpJson, ReplacesBytesThatAreNotUtf8) {
  EXPECT_EQ(DumpJson(Json(std::string("a\xff"))), "\"a\xef\xbf\xbd\"");
}

TEST(JsonInteger, TakesTheSpellingsOfDeepSpeedsBucketSizes) {
  EXPECT_EQ(JsonInteger(Json::parse("5e8")).value(), 500'000'000);
  EXPECT_EQ(JsonInteger(Json::parse("-3")).value(), -3);
  EXPECT_EQ(JsonInteger(Json::parse("9223372036854775807")).value(), INT64_MAX);
}

TEST(ParseJson, TakesSixtyFourLevels) {
  EXPECT_EQ(ErrorOf(std::string(64, '[') + "1" + std::string(64, ']')), "parsed");
  EXPECT_THAT(ErrorOf(std::string(65, '[') + "1" + std::string(65, ']')),
              HasSubstr("nested deeper than 64 levels"));
}

TEST(DumpJson, IndentsWhereItIsAsked) {
  EXPECT_EQ(DumpJson(Json{{"a", 1}}, 1), "{\n \"a\": 1\n}");
  EXPECT_EQ(DumpJson(Json{{"a", 1}}, 0), "{\"a\":1}");
}

// Above 2^53 doubles skip integers, so the original number is not known.
TEST(JsonInteger, TakesADoubleBelowTwoToThe53) {
  EXPECT_EQ(JsonInteger(Json(9007199254740991.0)).value(), 9007199254740991);
  EXPECT_EQ(JsonInteger(Json(-9007199254740991.0)).value(), -9007199254740991);
  EXPECT_FALSE(JsonInteger(Json(9007199254740992.0)).ok());
  EXPECT_FALSE(JsonInteger(Json(-9007199254740992.0)).ok());
  EXPECT_EQ(JsonInteger(Json(INT64_MIN)).value(), INT64_MIN);
}

TEST(JsonInteger, RefusesWhatIsNoInteger) {
  for (const char* const text : {"1.5", "1e300", "9223372036854775808", "\"7\"", "true", "null"}) {
    EXPECT_EQ(JsonInteger(Json::parse(text)).status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
}

}  // namespace
}  // namespace dtrain::json_test
