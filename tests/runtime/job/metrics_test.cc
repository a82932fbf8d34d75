// The output and the records of a rank without an agent: units, columns and metrics of the
// program's own.
#include "dtrain/metrics.h"

#include <fstream>
#include <functional>

#include "dtrain/engine.h"
#include "dtrain/token_loader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/metrics/step_record.h"
#include "tests/runtime/testing/job_for_tests.h"

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

// The output of a program that logs 12 steps.
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
    metrics.SetStep(step);  // The engine calls this in a real program.
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

TEST(Metrics, LeavesOutWhatAnEvaluationThatWasStoppedGave) {
  const testing::TempFolder folder;
  {
    auto metrics = Metrics::Open({.directory = folder.path()});
    ASSERT_TRUE(metrics.ok()) << metrics.status();
    (*metrics)->Log("eval/loss", 2);
    (*metrics)->EndEvaluations();
    (*metrics)->Log("eval/loss", 3);
    (*metrics)->Log("own/loss", 4);
  }
  std::ifstream file(folder.path() + "/rank-0.jsonl");
  std::vector<double> values;
  for (std::string line; std::getline(file, line);) {
    const Json record = Json::parse(line);
    for (const auto& [name, value] : record["m"].items()) {
      values.push_back(value.get<double>());
    }
  }
  EXPECT_THAT(values, ElementsAre(2, 4));
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
  void Arrive(const StepNumbers& numbers) {
    numbers_ = numbers;
    ready_ = true;
  }

 private:
  StepNumbers numbers_;
  bool ready_ = false;
};

// The output of a program whose step `late` comes from a device, and that calls `after` then.
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
    numbers->Arrive({.loss = 1.25, .seconds = 0.5});
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

// Tools read these names. The expected numbers are worked out by hand from the report.
TEST(StepMetrics, AreTheReportsNumbersAndTheirRatios) {
  StepReport report = Report(10);
  report.grad_norm = 0.75;
  report.loss_scale = 1024;
  report.skipped = true;
  report.data_s = 0.01;
  report.forward_s = 0.1;
  report.backward_s = 0.2;
  report.exposed_comm_s = 0.125;
  report.update_s = 0.06;
  report.recompute_s = 0.03;
  report.activation_wait_s = 0.02;
  report.model_flops = 6e9;
  report.gemm_flops_per_s = 48e9;
  report.peak_flops_per_s = 60e9;
  report.memory.weights = 1;
  report.memory.live_weights = 2;
  report.memory.gradients = 3;
  report.memory.optimizer = 4;
  report.memory.activations = 5;
  report.memory.far_activations = 6;
  report.memory.resident = 7;
  const StepRecordContext context{.mean_step_s = 0.25, .total_steps = 30};
  std::vector<std::pair<std::string, double>> of_each = {{"comm/exposed_ratio", 0.25},
                                                         {"time/step_s", 0.5},
                                                         {"time/data_s", 0.01},
                                                         {"time/forward_s", 0.1},
                                                         {"time/backward_s", 0.2},
                                                         {"time/exposed_comm_s", 0.125},
                                                         {"time/update_s", 0.06},
                                                         {"time/recompute_s", 0.03},
                                                         {"time/activation_wait_s", 0.02},
                                                         {"memory/far_activations_bytes", 6},
                                                         {"memory/weights_bytes", 1},
                                                         {"memory/live_weights_bytes", 2},
                                                         {"memory/gradients_bytes", 3},
                                                         {"memory/optimizer_bytes", 4},
                                                         {"memory/activations_bytes", 5},
                                                         {"memory/resident_bytes", 7}};
  EXPECT_EQ(StepMetrics(report, context, /*everything=*/false), of_each);
  std::vector<std::pair<std::string, double>> all = {
      {"train/loss", 2.5},          {"train/grad_norm", 0.75}, {"train/lr", 3e-4},
      {"train/loss_scale", 1024},   {"train/skipped", 1},      {"perf/images_per_s", 64 / 0.5},
      {"perf/gemm_fraction", 0.25}, {"perf/mfu", 0.2},         {"time/eta_s", 20 * 0.25}};
  all.insert(all.end(), of_each.begin(), of_each.end());
  EXPECT_EQ(StepMetrics(report, context, /*everything=*/true), all);
}

// Products alone are never slower than a step: what says so was measured on a busy machine.
TEST(StepMetrics, AGemmFractionAboveOneIsLeftOut) {
  StepReport report = Report(10);
  const auto fraction = [&report](double model_flops) {
    report.model_flops = model_flops;
    for (const auto& [name, value] : StepMetrics(report, {}, /*everything=*/true)) {
      if (name == "perf/gemm_fraction") {
        return value;
      }
    }
    return -1.0;
  };
  report.gemm_flops_per_s = 10e9;
  report.peak_flops_per_s = 60e9;
  EXPECT_DOUBLE_EQ(fraction(2.5e9), 0.5);  // In half a second.
  EXPECT_DOUBLE_EQ(fraction(5e9), 1);
  EXPECT_EQ(fraction(5.001e9), -1);
  EXPECT_EQ(fraction(56e9), -1);
  report.gemm_flops_per_s = 0;
  EXPECT_EQ(fraction(2.5e9), -1) << "not measured yet";
}

TEST(StepMetrics, WhatAStepDoesNotHaveIsLeftOut) {
  std::vector<std::string> names;
  for (const auto& [name, value] : StepMetrics(Report(10), {}, /*everything=*/true)) {
    names.push_back(name);
  }
  EXPECT_THAT(
      names,
      ElementsAre("train/loss", "train/grad_norm", "train/lr", "perf/images_per_s",
                  "comm/exposed_ratio", "time/step_s", "time/data_s", "time/forward_s",
                  "time/backward_s", "time/exposed_comm_s", "time/update_s", "memory/weights_bytes",
                  "memory/live_weights_bytes", "memory/gradients_bytes", "memory/optimizer_bytes",
                  "memory/activations_bytes", "memory/resident_bytes"));
}

// The numbers of a device take the place of those that the host gave.
TEST(StepReport, SettledHasTheNumbersOfTheDevice) {
  const auto numbers = std::make_shared<NumbersOfADevice>();
  numbers->Arrive({.loss = 1,
                   .grad_norm = 2,
                   .skipped = true,
                   .seconds = 3,
                   .forward_s = 4,
                   .backward_s = 5,
                   .exposed_comm_s = 6,
                   .update_s = 7});
  StepReport report = Report(10);
  report.data_s = 0.5;
  report.late = numbers;
  const StepReport settled = report.Settled();
  EXPECT_EQ(settled.late, nullptr);
  const std::vector<double> values = {settled.loss,          settled.grad_norm,
                                      settled.seconds,       settled.forward_s,
                                      settled.backward_s,    settled.exposed_comm_s,
                                      settled.update_s,      settled.data_s,
                                      settled.learning_rate, static_cast<double>(settled.tokens)};
  EXPECT_THAT(values, ElementsAre(1, 2, 3, 4, 5, 6, 7, 0.5, 3e-4, 64));
  EXPECT_TRUE(settled.skipped);
}

TEST(Metrics, RecordsSamplesAndATimeToTheEndByTheSmoothedStepTime) {
  const testing::TempFolder folder;
  {
    auto metrics =
        Metrics::Open({.directory = folder.path(), .samples_per_step = 16, .total_steps = 12});
    ASSERT_TRUE(metrics.ok()) << metrics.status();
    for (int64_t step = 1; step <= 2; ++step) {
      StepReport report = Report(step);
      report.seconds = static_cast<double>(step);
      (*metrics)->Log(report);
    }
  }
  std::ifstream file(folder.path() + "/rank-0.jsonl");
  std::vector<double> samples;
  std::vector<double> left;
  for (std::string line; std::getline(file, line);) {
    const Json record = Json::parse(line);
    samples.push_back(record["samples"]);
    left.push_back(record["m"]["time/eta_s"]);
  }
  EXPECT_THAT(samples, ElementsAre(16, 32));
  EXPECT_THAT(left, ElementsAre(11 * 1.0, ::testing::DoubleEq(10 * (0.9 * 1 + 0.1 * 2))));
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
