#include "base/console/banner.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::banner_test {
namespace {

using ::testing::ElementsAre;

const Banner kRun = {
    "dtrain 0.1.0  run 13b50037ab40 in runs/gpt",
    {{"model", "5.12M parameters, fp32, ZeRO stage 0"},
     {"checkpoints", "every 100 steps, the newest 3 kept, in runs/gpt/checkpoints"}}};

TEST(FormatBanner, AlignsTextsBehindLabels) {
  EXPECT_THAT(FormatBanner(kRun, 80),
              ElementsAre("dtrain 0.1.0  run 13b50037ab40 in runs/gpt",
                          "  model        5.12M parameters, fp32, ZeRO stage 0",
                          "  checkpoints  every 100 steps, the newest 3 kept, in "
                          "runs/gpt/checkpoints"));
  EXPECT_EQ(FormatBanner(kRun, 0), FormatBanner(kRun, 80));
}

TEST(FormatBanner, WrapsBetweenWordsOnANarrowTerminal) {
  EXPECT_THAT(
      FormatBanner(kRun, 40),
      ElementsAre("dtrain 0.1.0  run 13b50037ab40 in",  //
                  "  runs/gpt", "  model        5.12M parameters, fp32,",
                  "               ZeRO stage 0", "  checkpoints  every 100 steps, the",
                  "               newest 3 kept, in", "               runs/gpt/checkpoints"));
}

TEST(FormatBanner, LeavesAWordThatIsTooWideAloneAndWhole) {
  EXPECT_THAT(FormatBanner({"run", {{"logs", "in /a/very/long/path now"}}}, 20),
              ElementsAre("run", "  logs  in", "        /a/very/long/path", "        now"));
}

TEST(FormatBanner, ShowsNoControlCharacters) {
  EXPECT_THAT(FormatBanner({"a\x1b[2J", {{"b", "c\nd"}}}, 0), ElementsAre("a?[2J", "  b  c?d"));
}

}  // namespace
}  // namespace dtrain::banner_test
