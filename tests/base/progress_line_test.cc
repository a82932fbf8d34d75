// The progress line for people.
#include "base/console/progress_line.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/text/text.h"

namespace dtrain::progress_line_test {
namespace {

Json Record() {
  return {{"kind", "step"},
          {"step", 1200},
          {"m",
           {{"train/loss", 2.91234},
            {"train/grad_norm", 1.2345},
            {"train/lr", 2.5e-4},
            {"perf/tokens_per_s", 4113.4},
            {"perf/gemm_fraction", 0.613},
            {"comm/exposed_ratio", 0.031},
            {"time/eta_s", 131.0}}}};
}

TEST(FormatProgress, ShowsTheDefaultColumnsWhereThereIsRoomForAll) {
  EXPECT_EQ(FormatProgress(Record(), {.total_steps = 6000}),
            "step 1,200/6,000  loss 2.9123  4,113 tokens/s  ETA 2:11  lr 2.5e-4  grad norm 1.23  "
            "GEMM fraction 61.3%  exposed comm 3.1%");
}

TEST(FormatProgress, LeavesOutTheLastColumnsOfANarrowTerminal) {
  EXPECT_EQ(FormatProgress(Record(), {.total_steps = 6000, .width = 77}),
            "step 1,200/6,000  loss 2.9123  4,113 tokens/s  ETA 2:11  lr 2.5e-4");
  EXPECT_EQ(FormatProgress(Record(), {.total_steps = 6000, .width = 37}),
            "step 1,200/6,000  loss 2.9123");
  EXPECT_EQ(FormatProgress(Record(), {.total_steps = 6000, .width = 28}), "step 1,200/6,000");
  EXPECT_EQ(FormatProgress(Record(), {.total_steps = 6000, .width = 15}), "1,200/6,000");
  EXPECT_EQ(FormatProgress(Record(), {.total_steps = 6000, .width = 9}), "1,200");
  EXPECT_EQ(FormatProgress(Record(), {.total_steps = 6000, .width = 4}), "");
}

// At every width the line consists of whole pieces of the full line.
TEST(FormatProgress, NeverCutsInsideAColumnAndNeverIsTooWide) {
  Json wide = Record();
  wide["step"] = 123'456'789;
  wide["m"]["train/loss"] = 1.23456789e300;
  wide["m"]["perf/tokens_per_s"] = 987'654'321'012.0;
  wide["m"]["train/grad_norm"] = 1e-300;
  for (const Json& record : {Record(), wide}) {
    const ProgressStyle all{.total_steps = 999'999'999};
    const std::string whole = FormatProgress(record, all) + "  ";
    for (int width = 1; width <= 200; ++width) {
      ProgressStyle style = all;
      style.width = width;
      const std::string line = FormatProgress(record, style);
      EXPECT_LE(line.size(), static_cast<size_t>(width));
      if (line.substr(0, 4) == "step" && line.find('/') != std::string::npos) {
        EXPECT_EQ(whole.find(line + "  "), 0U) << width << ": " << line;
      }
    }
  }
}

TEST(FormatProgress, ShowsWideAndOddValuesShort) {
  Json record = Record();
  record["m"] = {{"train/loss", 1.23456789e300},
                 {"perf/tokens_per_s", 987'654'321.0},
                 {"train/lr", 0.0},
                 {"train/grad_norm", 1234567.0},
                 {"time/eta_s", 4e5}};
  EXPECT_EQ(FormatProgress(record, {.total_steps = 6000}),
            "step 1,200/6,000  loss 1.235e300  987,654,321 tokens/s  ETA 4d 15:06  lr 0  "
            "grad norm 1.23e6");
}

// In a record read from the file such losses are strings; the line must still show them.
TEST(FormatProgress, ShowsLossesThatAreNotFinite) {
  Json record = Record();
  record["m"]["train/loss"] = "NaN";
  EXPECT_EQ(FormatProgress(record, {.width = 20}), "step 1,200  loss NaN");
  record["m"]["train/loss"] = "-Infinity";
  EXPECT_EQ(FormatProgress(record, {.width = 26}), "step 1,200  loss -Infinity");
  record["m"]["train/loss"] = std::nan("");
  EXPECT_EQ(FormatProgress(record, {.width = 20}), "step 1,200  loss NaN");
}

TEST(FormatProgress, TakesTheUnitFromTheRatesName) {
  Json record = {
      {"kind", "step"}, {"step", 7}, {"m", {{"perf/images_per_s", 12.34}, {"time/step_s", 0.1}}}};
  EXPECT_EQ(FormatProgress(record, {}), "step 7  12.3 images/s");
  record["m"] = {{"perf/samples_per_s", 0.456}, {"time/step_s", 0.1}};
  EXPECT_EQ(FormatProgress(record, {.columns = {"rate"}}), "step 7  0.46 samples/s");
  EXPECT_EQ(FormatProgress(record, {.columns = {"samples_per_s"}}), "step 7  0.46 samples/s");
}

TEST(FormatProgress, TakesNoSingleValueOfAProgramForAStep) {
  for (const char* name : {"loss", "rate", "perf/loss", "perf/images_per_s", "own/accuracy"}) {
    const Json record = {{"kind", "step"}, {"step", 7}, {"m", {{name, 0.5}}}};
    EXPECT_FALSE(IsProgress(record)) << name;
  }
}

TEST(FormatProgress, ShowsTheChosenColumnsInTheirOrder) {
  Json record = Record();
  record["m"]["own/accuracy"] = 0.87654321;
  record["m"]["images"] = 1e9;
  record["m"]["time/data_s"] = 0.0001234;
  record["m"]["memory/resident_bytes"] = 1.4e9;
  record["m"]["time/step_s"] = 0.0123;
  const ProgressStyle style{.columns = {"own/accuracy", "images", "time/data_s", "memory",
                                        "train/lr", "step_time", "tokens_per_s", "absent", "loss"}};
  EXPECT_EQ(FormatProgress(record, style),
            "step 1,200  own/accuracy 0.8765  images 1e9  time/data_s 1.234e-4  memory 1.4 GB  "
            "lr 2.5e-4  step time 0.0123 s  4,113 tokens/s  loss 2.9123");
}

TEST(FormatProgress, CountsCharactersOfNamesAndNotTheirBytes) {
  Json record = Record();
  record["m"]["\xc3\xbc/\xc3\xa4"] = 1.0;  // Two letters of two bytes each.
  const std::string line =
      FormatProgress(record, {.width = 22, .columns = {"\xc3\xbc/\xc3\xa4", "loss"}});
  EXPECT_EQ(line, "step 1,200  \xc3\xbc/\xc3\xa4 1.0000");
  EXPECT_EQ(DisplayWidth(line), 22U);
}

TEST(FormatProgress, LeavesOutWhatIsAbsent) {
  Json record = {{"kind", "step"}, {"step", 7}, {"m", {{"train/loss", 2.0}, {"time/eta_s", 9.0}}}};
  EXPECT_EQ(FormatProgress(record, {}), "step 7  loss 2.0000");  // No total: no time left.
  record["m"]["perf/mfu"] = 0.5;  // A device with a datasheet peak: MFU in place of GEMM fraction.
  record["m"]["perf/gemm_fraction"] = 0.7;
  EXPECT_EQ(FormatProgress(record, {}), "step 7  loss 2.0000  MFU 50.0%");
}

// Without a datasheet peak, the column mfu shows the GEMM fraction.
TEST(FormatProgress, ShowsNoMetricTwice) {
  const ProgressStyle both{.columns = {"mfu", "gemm_fraction", "loss", "train/loss"}};
  EXPECT_EQ(FormatProgress(Record(), both), "step 1,200  GEMM fraction 61.3%  loss 2.9123");
  Json record = Record();
  record["m"]["perf/mfu"] = 0.5;
  EXPECT_EQ(FormatProgress(record, both),
            "step 1,200  MFU 50.0%  GEMM fraction 61.3%  loss 2.9123");
}

TEST(FormatProgress, ShowsNoTimeLeftAfterTheLastStep) {
  const Json record = {
      {"kind", "step"}, {"step", 1001}, {"m", {{"train/loss", 2.0}, {"time/eta_s", -0.1}}}};
  EXPECT_EQ(FormatProgress(record, {.total_steps = 1000}), "step 1,001/1,000  loss 2.0000");
}

TEST(FormatProgress, IsEmptyForOtherRecords) {
  EXPECT_EQ(FormatProgress({{"kind", "event"}, {"step", 1}}, {}), "");
  EXPECT_EQ(FormatProgress({{"kind", "step"}, {"step", 1}, {"m", {{"time/data_s", 1.0}}}}, {}), "");
  EXPECT_EQ(FormatProgress({{"kind", "step"}, {"step", 1}, {"m", {{"own", 1.0}}}}, {}), "");
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
  EXPECT_EQ(FormatDuration(1e300), "?");
  EXPECT_EQ(FormatDuration(-1), "?");
}

TEST(FormatAge, NamesTheLargestUnit) {
  EXPECT_EQ(FormatAge(-3), "0 s");
  EXPECT_EQ(FormatAge(59.9), "59 s");
  EXPECT_EQ(FormatAge(185), "3 min");
  EXPECT_EQ(FormatAge(5 * 3600), "5 h");
  EXPECT_EQ(FormatAge(3 * 86400 + 5), "3 days");
}

TEST(FormatBytes, KeepsTwoDigitsAtLeast) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(512), "512 B");
  EXPECT_EQ(FormatBytes(6.14e6), "6.1 MB");
  EXPECT_EQ(FormatBytes(61.4e6), "61 MB");
  EXPECT_EQ(FormatBytes(999.6e6), "1.0 GB");
  EXPECT_EQ(FormatBytes(1.5e21), "1500 EB");
}

TEST(FormatDuration, ChangesItsFormAtAnHourAndADay) {
  EXPECT_EQ(FormatDuration(0), "0:00");
  EXPECT_EQ(FormatDuration(59.5), "1:00");
  EXPECT_EQ(FormatDuration(3599), "59:59");
  EXPECT_EQ(FormatDuration(3600), "1:00:00");
  EXPECT_EQ(FormatDuration(86399), "23:59:59");
  EXPECT_EQ(FormatDuration(86400), "1d 00:00");
}

TEST(FormatAge, ChangesItsUnitWhereThereIsOneOfIt) {
  EXPECT_EQ(FormatAge(60), "1 min");
  EXPECT_EQ(FormatAge(3599), "59 min");
  EXPECT_EQ(FormatAge(3600), "1 h");
  EXPECT_EQ(FormatAge(2 * 86400 - 1), "47 h");
  EXPECT_EQ(FormatAge(2 * 86400), "2 days");
  EXPECT_EQ(FormatAge(std::nan("")), "?");
}

TEST(FormatBytes, ChangesItsUnitWhereFourDigitsWouldStand) {
  EXPECT_EQ(FormatBytes(999.4), "999 B");
  EXPECT_EQ(FormatBytes(999.5), "1.0 kB");
  EXPECT_EQ(FormatBytes(9.94e3), "9.9 kB");
  EXPECT_EQ(FormatBytes(9.96e3), "10 kB");
  EXPECT_EQ(FormatBytes(-2e9), "-2.0 GB");
  EXPECT_EQ(FormatBytes(3e12), "3.0 TB");
  EXPECT_EQ(FormatBytes(3e15), "3.0 PB");
}

TEST(FormatProgress, RatesHaveThreeDigitsOrAllOfTheirIntegers) {
  const auto rate = [](double value) {
    return FormatProgress(
        {{"kind", "step"}, {"step", 7}, {"m", {{"perf/images_per_s", value}, {"time/step_s", 1}}}},
        {.columns = {"rate"}});
  };
  EXPECT_EQ(rate(9.99), "step 7  9.99 images/s");
  EXPECT_EQ(rate(10), "step 7  10.0 images/s");
  EXPECT_EQ(rate(99.9), "step 7  99.9 images/s");
  EXPECT_EQ(rate(100), "step 7  100 images/s");
  EXPECT_EQ(rate(2e15), "step 7  2e15 images/s");
}

TEST(FormatShort, HasThreeDigitsOrAnExponent) {
  EXPECT_EQ(FormatShort(0.001), "0.001");
  EXPECT_EQ(FormatShort(0.00099), "9.9e-4");
  EXPECT_EQ(FormatShort(99.95), "100");
  EXPECT_EQ(FormatShort(1234.4), "1234");
  EXPECT_EQ(FormatShort(99999), "99999");
  EXPECT_EQ(FormatShort(1e5), "1e5");
  EXPECT_EQ(FormatShort(-0.5), "-0.5");
}

TEST(WithThousands, GroupsFromTheRight) {
  EXPECT_EQ(WithThousands(0), "0");
  EXPECT_EQ(WithThousands(999), "999");
  EXPECT_EQ(WithThousands(1'234'567), "1,234,567");
  EXPECT_EQ(WithThousands(-123'456), "-123,456");
}

}  // namespace
}  // namespace dtrain::progress_line_test
