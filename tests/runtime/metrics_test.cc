// What a rank without an agent shows and records: units, columns and metrics of the program's own.
#include "dtrain/metrics.h"

#include <fstream>
#include <functional>

#include "dtrain/engine.h"
#include "dtrain/token_loader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/metrics/step_record.h"
#include "tests/runtime/job_for_tests.h"

namespace dtrain::metrics_test {
namespace {

using ::testing::ElementsAre;

StepReport Report(int64_t step) {
  StepReport report;
  report.step = step;
  report.loss = 2.5;
  report.learning_rate = 3e-4;
  report.tokens = 64;
  report.unit = "images";
  report.seconds = 0.5;
  return report;
}

// What a program that logs 12 steps prints.
std::string Printed(MetricsOptions options,
                    const std::function<void(Metrics&, int64_t step)>& log) {
  options.total_steps = 12;
  options.interval = 5;
  ::testing::internal::CaptureStdout();
  {
    auto metrics = Metrics::Open(options);
    EXPECT_TRUE(metrics.ok()) << metrics.status();
    for (int64_t step = 1; step <= 12; ++step) {
      log(**metrics, step);
    }
  }
  return ::testing::internal::GetCapturedStdout();
}

TEST(Metrics, PrintsOwnColumnsAndUnitsAtTheInterval) {
  const testing::TempFolder folder;
  const MetricsOptions options{.directory = folder.path(),
                               .columns = {"loss", "rate", "own/accuracy"},
                               .print_progress = true};
  const std::string printed = Printed(options, [](Metrics& metrics, int64_t step) {
    metrics.SetStep(step);  // As the engine does.
    metrics.Log("own/accuracy", 0.01 * static_cast<double>(step));
    metrics.Log(Report(step));
  });
  EXPECT_EQ(printed,
            "step 1/12  loss 2.5000  128 images/s  own/accuracy 0.0100\n"
            "step 5/12  loss 2.5000  128 images/s  own/accuracy 0.0500\n"
            "step 10/12  loss 2.5000  128 images/s  own/accuracy 0.1000\n"
            "step 12/12  loss 2.5000  128 images/s  own/accuracy 0.1200\n");
  std::ifstream file(folder.path() + "/rank-0.jsonl");
  std::vector<int64_t> steps;
  for (std::string line; std::getline(file, line);) {
    const Json record = Json::parse(line);
    if (record["m"].contains("own/accuracy")) {
      steps.push_back(record["step"].get<int64_t>());
    } else {
      EXPECT_EQ(record["m"]["perf/images_per_s"], 128.0);
    }
  }
  EXPECT_THAT(steps, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12));
}

TEST(Metrics, PrintsNothingWhereAnAgentShowsTheRunAndBesideRankZero) {
  for (const auto& [rank, print_progress] : {std::pair(0, false), std::pair(1, true)}) {
    const testing::TempFolder folder;
    const MetricsOptions options{
        .directory = folder.path(), .rank = rank, .print_progress = print_progress};
    EXPECT_EQ(Printed(options, [](Metrics& metrics, int64_t step) { metrics.Log(Report(step)); }),
              "");
  }
}

TEST(StepMetrics, NamesTheRateByTheUnit) {
  const auto rate = [](const std::string& unit) {
    StepReport report = Report(1);
    report.unit = unit;
    for (const auto& [name, value] : StepMetrics(report, {}, /*everything=*/true)) {
      if (value == 128) {
        return name;
      }
    }
    return std::string();
  };
  EXPECT_EQ(rate("tokens"), "perf/tokens_per_s");
  EXPECT_EQ(rate("images"), "perf/images_per_s");
  EXPECT_EQ(rate(""), "perf/samples_per_s");
}

struct Images {
  static constexpr const char* kSampleUnit = "images";
};

TEST(SampleUnit, IsWhatTheBatchSays) {
  EXPECT_EQ(SampleUnit<Batch>(), "tokens");
  EXPECT_EQ(SampleUnit<Images>(), "images");
  EXPECT_EQ(SampleUnit<int>(), "");
}

}  // namespace
}  // namespace dtrain::metrics_test
