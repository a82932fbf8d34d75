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
using ::testing::HasSubstr;
using ::testing::Not;

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

// The numbers of a step on a device: there when its engine ends, at the latest.
class NumbersOfADevice final : public LateNumbers {
 public:
  bool ready() const override { return ready_; }
  const StepNumbers& Wait() override { return numbers_; }
  void Arrive() {
    numbers_.loss = 1.25;
    numbers_.seconds = 0.5;
    ready_ = true;
  }

 private:
  StepNumbers numbers_;
  bool ready_ = false;
};

// What a program prints whose step `late` comes from a device, and that then does `after`.
std::string PrintedAfterLateStep(int64_t late, const std::function<void(Metrics&)>& after) {
  const testing::TempFolder folder;
  ::testing::internal::CaptureStdout();
  {
    auto metrics = Metrics::Open({.directory = folder.path(),
                                  .total_steps = 12,
                                  .interval = 5,
                                  .columns = {"loss"},
                                  .print_progress = true});
    EXPECT_TRUE(metrics.ok()) << metrics.status();
    (*metrics)->Log(Report(1));
    const auto numbers = std::make_shared<NumbersOfADevice>();
    StepReport report = Report(late);
    report.loss = Late<double>(numbers, &StepNumbers::loss);
    report.late = numbers;
    (*metrics)->Log(report);
    numbers->Arrive();
    after(**metrics);
  }
  return ::testing::internal::GetCapturedStdout();
}

TEST(Metrics, ShowsALateStepBeforeWhatEndsTheRun) {
  EXPECT_EQ(PrintedAfterLateStep(2,
                                 [](Metrics& metrics) {  // Step 3 fails, and the engine ends.
                                   metrics.LeaveProgress();
                                   metrics.Print("step 3 failed");
                                 }),
            "step 1/12  loss 2.5000\nstep 2/12  loss 1.2500\nstep 3 failed\n");
}

TEST(Metrics, ShowsALateStepBeforeItsEvaluation) {
  EXPECT_EQ(PrintedAfterLateStep(5, [](Metrics& metrics) { metrics.Log("eval/loss", 1.5); }),
            "step 1/12  loss 2.5000\nstep 5/12  loss 1.2500\nstep 5  eval/loss 1.5000\n");
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

TEST(SampleUnit, IsAWord) {
  for (const char* const good : {"tokens", "images", "k-mers", "graph_nodes", "2x2"}) {
    EXPECT_TRUE(CheckSampleUnit("Batch::kSampleUnit", good).ok()) << good;
  }
  for (const std::string& bad :
       {std::string(), std::string("img/s"), std::string("big images"), std::string("images\n"),
        std::string("\xc3\xbc"), std::string(33, 'a'), std::string("a\0b", 3)}) {
    const absl::Status refused = CheckSampleUnit("Batch::kSampleUnit", bad);
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << bad;
    EXPECT_THAT(refused.message(), HasSubstr("Batch::kSampleUnit is \""));
    EXPECT_THAT(refused.message(), Not(HasSubstr("\n")));
  }
}

}  // namespace
}  // namespace dtrain::metrics_test
