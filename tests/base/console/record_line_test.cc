#include "base/console/record_line.h"

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::record_line_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Json Record(const std::string& text) { return ParseRecord(text).value_or(Json()); }

std::string Line(const std::string& text) {
  return absl::StrJoin(FormatRecord(Record(text), 0), "\n");
}

TEST(FormatRecord, ShowsEvaluationsAndEvents) {
  EXPECT_EQ(Line(R"({"kind":"eval","step":1200,"m":{"eval/loss":2.5,"eval/tokens":4096}})"),
            "step 1,200  eval/loss 2.5000  eval/tokens 4,096");
  EXPECT_EQ(Line(R"({"v":1,"kind":"event","step":5,"name":"save_failed","why":"disk full"})"),
            "step 5  save_failed  why disk full");
  EXPECT_EQ(Line(R"({"v":1,"kind":"event","step":0,"name":"first_forward"})"), "");
}

TEST(FormatRecord, SaysWhatASaveTookAndWhereItIs) {
  EXPECT_EQ(Line(R"({"kind":"ckpt","step":1200,"durable":true,"path":"runs/a/checkpoints/s",)"
                 R"("m":{"ckpt/bytes":61200000,"ckpt/seconds":0.3,"time/checkpoint_s":0.42}})"),
            "saved step 1,200 in 0.4 s (61 MB) to runs/a/checkpoints/s");
  EXPECT_EQ(
      Line(R"({"kind":"ckpt","step":5,"path":"c","m":{"ckpt/bytes":1,"time/checkpoint_s":71}})"),
      "saved step 5 in 71 s (1 B) to c");
  EXPECT_EQ(Line(R"({"kind":"ckpt","step":5,"m":{"path":"c/5"}})"),
            "step 5  checkpoint  path c/5");  // A record that a program writes itself.
}

TEST(FormatRecord, SaysOfASaveInTheBackgroundHowLongTrainingWaited) {
  EXPECT_EQ(Line(R"({"kind":"ckpt","step":1200,"durable":true,"background":true,"path":"c/s",)"
                 R"("m":{"ckpt/bytes":61200000,"ckpt/seconds":0.3,"time/checkpoint_s":0.0021}})"),
            "saved step 1,200 while training went on (61 MB, 2.1 ms of waiting) to c/s");
  EXPECT_EQ(Line(R"({"kind":"ckpt","step":1300,"skipped":true,"m":{"ckpt/skipped":2}})"),
            "skipped the checkpoint of step 1,300: the last one is still being written (2 skipped "
            "so far)");
}

// The rank has logged a warning with the reason.
TEST(FormatRecord, LeavesAFailedSaveToItsWarning) {
  EXPECT_EQ(Line(R"({"kind":"ckpt","step":5,"durable":false,"error":"disk full","m":{}})"), "");
}

TEST(FormatRecord, SaysWhereARunResumesAndHowOldThatIs) {
  EXPECT_EQ(Line(R"({"kind":"ckpt","step":0,"ts":1000.5,"restored":1200,"path":"c/s",)"
                 R"("saved_unix_s":815.0,"note":"; resharded","m":{}})"),
            "resumed from step 1,200 (checkpoint c/s, saved 3 min ago); resharded");
  EXPECT_EQ(Line(R"({"kind":"ckpt","step":0,"restored":3,"path":"c/s","m":{}})"),
            "resumed from step 3 (checkpoint c/s)");
}

TEST(FormatRecord, ShowsTheBannerAtTheTerminalsWidth) {
  const Json record = Record(R"({"kind":"event","step":0,"name":"banner","title":"dtrain",)"
                             R"("rows":[["batch","8 = micro-batch 4 x 2"],["bad"],7]})");
  EXPECT_THAT(FormatRecord(record, 0), ElementsAre("dtrain", "  batch  8 = micro-batch 4 x 2"));
  EXPECT_THAT(FormatRecord(record, 26),
              ElementsAre("dtrain", "  batch  8 = micro-batch 4", "         x 2"));
}

TEST(FormatRecord, WrapsBetweenWordsOnANarrowTerminal) {
  const Json record = Record(R"({"kind":"ckpt","step":1200,"path":"runs/a/checkpoints/s",)"
                             R"("m":{"ckpt/bytes":61200000,"time/checkpoint_s":0.42}})");
  EXPECT_THAT(FormatRecord(record, 40), ElementsAre("saved step 1,200 in 0.4 s (61 MB) to",  //
                                                    "  runs/a/checkpoints/s"));
}

TEST(FormatRecord, SaysWhatWasJournalledAndNotTwiceThatTheJournalIsOff) {
  EXPECT_EQ(Line(R"({"kind":"event","step":1200,"name":"journal","steps":100,)"
                 R"("m":{"journal/bytes":1060000000,"journal/seconds":2.5,)"
                 R"("time/journal_s":0.0123}})"),
            "journalled 100 steps up to step 1,200 (rank 0: 1.1 GB, 12.3 ms of waiting)");
  EXPECT_THAT(FormatRecord(Record(R"({"kind":"event","step":9,"name":"journal_off","why":"a",)"
                                  R"("m":{"journal/off":1}})"),
                           0),
              IsEmpty());
}

TEST(FormatRecord, HasNoneForStepsAndForeignLines) {
  for (const char* text : {R"({"kind":"step","step":1,"m":{}})", R"({"kind":"config"})", "{}"}) {
    EXPECT_THAT(FormatRecord(Record(text), 0), IsEmpty()) << text;
  }
}

TEST(FormatRecord, ShowsNoControlCharacters) {
  EXPECT_EQ(Line(R"({"kind":"event","step":1,"name":"n","why":"a\u001b[2Jb"})"),
            "step 1  n  why a?[2Jb");
}

TEST(ParseRecord, TornLinesAreNoRecords) {
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
}  // namespace dtrain::record_line_test
