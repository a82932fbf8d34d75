// The line that a person watches.
#include "base/progress_line.h"

#include <gtest/gtest.h>

#include <cmath>

namespace dtrain {
namespace {

Json Record() {
  return {{"kind", "step"},
          {"step", 1200},
          {"m",
           {{"train/loss", 2.91234},
            {"perf/tokens_per_s", 4113.4},
            {"perf/gemm_fraction", 0.613},
            {"comm/exposed_ratio", 0.031},
            {"time/eta_s", 131.0}}}};
}

TEST(FormatProgress, ShowsStepLossRateFractionsAndTimeLeft) {
  EXPECT_EQ(FormatProgress(Record(), {.total_steps = 6000}),
            "step 1,200/6,000  loss 2.9123  4,113 tok/s  GEMM fraction 61.3%  exposed comm 3.1%  "
            "ETA 2:11");
}

TEST(FormatProgress, LeavesOutWhatIsAbsent) {
  Json record = {{"kind", "step"}, {"step", 7}, {"m", {{"train/loss", 2.0}}}};
  EXPECT_EQ(FormatProgress(record, {}), "step 7  loss 2.0000");
  record["m"]["perf/mfu"] = 0.5;  // A device with a datasheet peak: MFU in place of GEMM fraction.
  record["m"]["perf/gemm_fraction"] = 0.7;
  EXPECT_EQ(FormatProgress(record, {}), "step 7  loss 2.0000  MFU 50.0%");
}

TEST(FormatProgress, CutsAtTheTerminalsWidth) {
  EXPECT_EQ(FormatProgress(Record(), {.total_steps = 6000, .columns = 20}), "step 1,200/6,000  lo");
}

TEST(FormatProgress, IsEmptyForOtherRecords) {
  EXPECT_EQ(FormatProgress({{"kind", "event"}, {"step", 1}}, {}), "");
  EXPECT_EQ(FormatProgress({{"kind", "step"}, {"step", 1}, {"m", {{"time/data_s", 1.0}}}}, {}), "");
  EXPECT_EQ(FormatProgress({{"kind", "step"}, {"step", "x"}, {"m", {{"train/loss", 1.0}}}}, {}),
            "");
  EXPECT_EQ(FormatProgress(Json::array(), {}), "");
}

TEST(FormatDuration, GrowsFromMinutesToDays) {
  EXPECT_EQ(FormatDuration(7.4), "0:07");
  EXPECT_EQ(FormatDuration(765), "12:45");
  EXPECT_EQ(FormatDuration(3 * 3600 + 131), "3:02:11");
  EXPECT_EQ(FormatDuration(4 * 86400 + 2 * 3600 + 660), "4d 02:11");
  EXPECT_EQ(FormatDuration(std::nan("")), "?");
  EXPECT_EQ(FormatDuration(-1), "?");
}

TEST(WithThousands, GroupsFromTheRight) {
  EXPECT_EQ(WithThousands(0), "0");
  EXPECT_EQ(WithThousands(999), "999");
  EXPECT_EQ(WithThousands(1'234'567), "1,234,567");
  EXPECT_EQ(WithThousands(-123'456), "-123,456");
}

}  // namespace
}  // namespace dtrain
