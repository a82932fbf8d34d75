#include "launcher/record_line.h"

#include "gtest/gtest.h"

namespace dtrain::launcher {
namespace {

Json Record(const std::string& text) { return ParseRecord(text).value_or(Json()); }

TEST(RecordLine, ShowsEvaluationsCheckpointsAndEvents) {
  EXPECT_EQ(FormatRecordLine(
                Record(R"({"kind":"eval","step":1200,"m":{"eval/loss":2.5,"eval/tokens":4096}})")),
            "step 1,200  eval/loss 2.5000  eval/tokens 4,096");
  EXPECT_EQ(FormatRecordLine(Record(R"({"kind":"ckpt","step":5,"m":{"path":"c/5"}})")),
            "step 5  checkpoint  path c/5");
  EXPECT_EQ(FormatRecordLine(Record(
                R"({"v":1,"kind":"event","step":5,"name":"save_failed","why":"disk full"})")),
            "step 5  save_failed  why disk full");
  EXPECT_EQ(FormatRecordLine(Record(R"({"v":1,"kind":"event","step":0,"name":"first_forward"})")),
            "");
}

TEST(RecordLine, HasNoneForStepsAndForeignLines) {
  for (const char* text : {R"({"kind":"step","step":1,"m":{}})", R"({"kind":"config"})", "{}"}) {
    EXPECT_EQ(FormatRecordLine(Record(text)), "") << text;
  }
}

TEST(RecordLine, TornLinesAreNoRecords) {
  const std::string whole = R"({"v":1,"kind":"step","step":3,"m":{"train/loss":1.5}})";
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(ParseRecord(whole.substr(0, length)).has_value()) << length;
  }
  EXPECT_TRUE(ParseRecord(whole).has_value());
  EXPECT_FALSE(ParseRecord("[1,2]").has_value());
}

TEST(TotalSteps, ComesFromTheConfigRecord) {
  EXPECT_EQ(TotalSteps(Record(R"({"kind":"config","m":{"train_steps":600}})")), 600);
  EXPECT_EQ(TotalSteps(Record(R"({"kind":"config","train_steps":700})")), 700);
  EXPECT_EQ(TotalSteps(Record(R"({"kind":"step","m":{"train_steps":600}})")), 0);
}

}  // namespace
}  // namespace dtrain::launcher
