// An engine's reports: memory by category, traces, and the error about a module that changed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <vector>

#include "ATen/ATen.h"
#include "base/json.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "dtrain/main.h"
#include "dtrain/recompute.h"
#include "runtime/device/device.h"
#include "runtime/engine/record/gemm_probe.h"
#include "runtime/optimizer/engine_state.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "torch/nn/module.h"

namespace dtrain::engine_report_test {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 4096;

class Wide : public torch::nn::Module {
 public:
  explicit Wide(bool recompute = false) : recompute_(recompute) {
    weight = register_parameter("weight", at::randn({64, 64}) * 0.1);
  }
  at::Tensor Loss(const at::Tensor& x) {
    const auto middle = [this](const at::Tensor& h) { return at::tanh(h.matmul(weight)).sin(); };
    return (recompute_ ? Recompute(middle, x) : middle(x)).square().sum();
  }
  at::Tensor weight;

 private:
  bool recompute_;
};

struct Rows {
  absl::StatusOr<at::Tensor> Next() { return at::ones({kRows, 64}); }
};

struct BigImages {
  static constexpr absl::string_view kSampleUnit = "big images";
  at::Tensor rows;
};
struct BigImagesSource {
  absl::StatusOr<BigImages> Next() { return BigImages{at::ones({kRows, 64})}; }
};

class EngineReportTest : public ::testing::Test {
 protected:
  void Make(Wide& model, std::vector<std::string> overrides = {}) {
    overrides.insert(overrides.begin(), "train_batch_size=1");
    job_ = *testing::MakeTestJob({.run_dir = folder_.path(), .overrides = std::move(overrides)});
    auto engine = Engine::Create(*job_, model);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }
  absl::StatusOr<StepReport> Step(Wide& model) {
    Rows rows;
    return engine_->Step(rows, [&](const at::Tensor& x) { return Loss(model.Loss(x), kRows); });
  }
  testing::TempFolder folder_;
  std::unique_ptr<Job> job_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineReportTest, MemoryIsToldByCategory) {
  for (const int stage : {0, 2, 3}) {
    Wide model;
    Make(model, {"zero_optimization.stage=" + std::to_string(stage)});
    const auto report = Step(model);
    ASSERT_TRUE(report.ok()) << report.status();
    const MemoryReport& memory = report->memory;
    EXPECT_EQ(memory.weights, 4 * 64 * 64) << stage;
    EXPECT_EQ(memory.optimizer, 2 * 4 * 64 * 64) << stage;
    EXPECT_EQ(memory.live_weights, stage == 3 ? 4 * 64 * 64 : 0);
    EXPECT_GE(memory.gradients, 4 * 64 * 64);
    // The product for tanh's backward, tanh for sin's, sin for the square's.
    EXPECT_GE(memory.activations, 2 * 4 * kRows * 64) << stage;
    EXPECT_GT(memory.resident, memory.weights + memory.optimizer + memory.gradients);
    engine_.reset();
  }
}

TEST_F(EngineReportTest, SamplesAreCalledWhatTheProgramCallsThem) {
  Wide model;
  job_ = *testing::MakeTestJob({.run_dir = folder_.path(), .overrides = {"train_batch_size=1"}});
  const auto refused = Engine::Create(*job_, model, {.sample_unit = "big images"});
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << refused.status();
  EXPECT_THAT(refused.status().message(), HasSubstr("\"big images\""));
  auto engine = Engine::Create(*job_, model, {.sample_unit = "images"});
  ASSERT_TRUE(engine.ok()) << engine.status();
  engine_ = *std::move(engine);
  EXPECT_EQ(Step(model)->unit, "images");
  engine_.reset();
  Make(model);
  EXPECT_EQ(Step(model)->unit, "");
  BigImagesSource source;
  const auto step = engine_->Step(
      source, [&](const BigImages& batch) { return Loss(model.Loss(batch.rows), kRows); });
  EXPECT_TRUE(absl::IsInvalidArgument(step.status())) << step.status();
  EXPECT_THAT(step.status().message(), HasSubstr("Batch::kSampleUnit is \"big images\""));
  EXPECT_EQ(engine_->step(), 1) << "refused before anything is done";
}

TEST_F(EngineReportTest, TheRateThatIsToldIsTheOneThatMovedTheWeights) {
  Wide model;
  Make(model, {R"(optimizer={"type":"SGD","params":{"lr":0.5}})", "gradient_clipping=0",
               R"(scheduler={"type":"WarmupLR","params":{"warmup_min_lr":0.25,)"
               R"("warmup_max_lr":1,"warmup_num_steps":4,"warmup_type":"linear"}})"});
  // DeepSpeed steps its scheduler after the optimizer: steps 1 and 2 have the smallest rate. A step
  // that is skipped has a rate too and does not move the schedule.
  const std::vector<double> rates = {0.25, 0.25, 0.4375, 0.4375, 0.625, 0.8125, 1, 1};
  Rows rows;
  for (size_t i = 0; i < rates.size(); ++i) {
    const bool bad = i == 2;
    const at::Tensor before = model.weight.detach().clone();
    // The gradient of every weight is 2.
    const auto report = engine_->Step(rows, [&](const at::Tensor&) {
      return Loss(model.weight.sum() * (bad ? std::numeric_limits<double>::infinity() : 2.0), 1);
    });
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->skipped, bad);
    EXPECT_DOUBLE_EQ(report->learning_rate, rates[i]) << "step " << i + 1;
    const at::Tensor moved = before - model.weight.detach();
    EXPECT_TRUE(at::allclose(moved, at::full({64, 64}, bad ? 0 : 2 * rates[i]), 1e-5, 1e-5))
        << "step " << i + 1 << ": " << moved[0][0].item<double>();
  }
}

TEST_F(EngineReportTest, MeasuringTheMachineDrawsNoNumberOfTheRuns) {
  at::manual_seed(11);
  at::randn({1});
  const at::Tensor expected = at::cat({at::randn({3}), at::rand({3})});
  at::manual_seed(11);
  at::randn({1});
  const GemmTiming timing = MeasureGemmRate(Device(), at::kFloat);
  EXPECT_GT(timing.flops_per_s, 0);
  EXPECT_GT(RepeatGemmRate(at::kFloat, timing.size).flops_per_s, 0);
  EXPECT_TRUE(at::cat({at::randn({3}), at::rand({3})}).equal(expected));
}

// Values that the program logs between a step and its report are of that step.
TEST_F(EngineReportTest, TheRunBeginsWithABannerAndOwnValuesAreOfTheirStep) {
  Wide model;
  Make(model);
  ASSERT_TRUE(Step(model).ok());
  job_->metrics().Log("own/value", 7);
  Wide other;
  const auto second = Engine::Create(*job_, other);  // The first engine's model is the run's.
  ASSERT_TRUE(second.ok()) << second.status();
  job_->metrics().Flush();
  std::ifstream file(folder_.path() + "/metrics/rank-0.jsonl");
  int banners = 0;
  int own = 0;
  for (std::string line; std::getline(file, line);) {
    const Json record = Json::parse(line);
    if (record.value("name", "") == "banner") {
      ++banners;
      EXPECT_EQ(record.at("rows").at(1), Json({"model", "4.10K parameters, fp32, ZeRO stage 0"}));
    }
    if (record.at("m").contains("own/value")) {
      ++own;
      EXPECT_EQ(record.at("step"), 1);
    }
  }
  EXPECT_EQ(banners, 1);
  EXPECT_EQ(own, 1);
}

TEST_F(EngineReportTest, WhatIsRecomputedIsNoActivation) {
  Wide kept;
  Make(kept);
  const int64_t all = Step(kept)->memory.activations;
  engine_.reset();
  Wide recomputed(true);
  Make(recomputed);
  EXPECT_LT(Step(recomputed)->memory.activations, 2 * all / 3);
}

TEST_F(EngineReportTest, ChosenStepsAreWrittenAsAChromeTrace) {
  Wide model;
  Make(model, {"metrics.trace_steps=2", "metrics.trace_first_step=2"});
  const std::string path = folder_.path() + "/trace/rank-0.json";
  for (int step = 1; step <= 4; ++step) {
    ASSERT_TRUE(Step(model).ok());
    EXPECT_EQ(std::filesystem::exists(path), step >= 3) << "after step " << step;
  }
  std::ifstream file(path);
  const Json trace = Json::parse(file);
  const auto count = [&](const std::string& name) {
    const Json& events = trace.at("traceEvents");
    return std::count_if(events.begin(), events.end(),
                         [&](const Json& event) { return event.value("name", "") == name; });
  };
  for (const char* const phase :
       {"dtrain::data", "dtrain::forward", "dtrain::backward", "dtrain::wait", "dtrain::update"}) {
    EXPECT_EQ(count(phase), 2) << phase;
  }
  EXPECT_GE(count("aten::mm"), 2 * 2);
  EXPECT_GT(count("[memory]"), 0);
}

TEST_F(EngineReportTest, MemoryOverATracedStepIsToldByCategory) {
  Wide model;
  Make(model, {"metrics.trace_steps=1", "metrics.trace_first_step=2"});
  for (int step = 1; step <= 3; ++step) {
    ASSERT_TRUE(Step(model).ok());
  }
  std::ifstream file(folder_.path() + "/trace/rank-0-memory.json");
  const Json trace = Json::parse(file);
  std::ifstream operations_file(folder_.path() + "/trace/rank-0.json");
  const Json operations = Json::parse(operations_file);
  const Json& samples = trace.at("traceEvents");
  ASSERT_GE(samples.size(), 3U);
  double most = 0;
  for (const Json& sample : samples) {
    EXPECT_EQ(sample.at("ph"), "C");
    const Json& bytes = sample.at("args");
    EXPECT_EQ(bytes.at("weights"), 4 * 64 * 64);
    EXPECT_EQ(bytes.at("optimizer"), 2 * 4 * 64 * 64);
    EXPECT_GE(bytes.at("gradients"), 4 * 64 * 64);
    most = std::max(most, bytes.at("activations and temporaries").get<double>());
  }
  const double activations = 2 * 4 * kRows * 64;
  EXPECT_GE(most, activations) << "between forward and backward";
  EXPECT_LT(samples.back().at("args").at("activations and temporaries"), activations)
      << "after the step they are gone";
  // Both files have one time.
  EXPECT_EQ(trace.at("baseTimeNanoseconds"), operations.at("baseTimeNanoseconds"));
  const auto begins = [&](const Json& event) {
    return event.value("name", "") == "dtrain::forward";
  };
  const Json& events = operations.at("traceEvents");
  const auto forward = std::find_if(events.begin(), events.end(), begins);
  ASSERT_NE(forward, events.end());
  EXPECT_NEAR(samples.front().at("ts").get<double>(), forward->at("ts").get<double>(), 5e6);
}

TEST_F(EngineReportTest, AModuleThatChangedIsRefusedByName) {
  Wide moved;
  Make(moved);
  moved.weight.set_data(at::randn({64, 64}));
  auto report = Step(moved);
  EXPECT_EQ(report.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(report.status().message()), HasSubstr("parameter weight is in other"));
  engine_.reset();
  Wide grown;
  Make(grown);
  grown.register_parameter("late", at::zeros({3}));
  report = Step(grown);
  EXPECT_THAT(std::string(report.status().message()), HasSubstr("parameter late is another or"));
}

TEST_F(EngineReportTest, AParameterThatMovesAfterAStepIsRefusedInTheNext) {
  const std::vector<std::vector<std::string>> ways = {
      {"zero_optimization.stage=0"},
      {"zero_optimization.stage=1", "bf16.enabled=true"},
      {"zero_optimization.stage=2"},
      {"zero_optimization.stage=3"},  // Kept whole, by its size.
      {"zero_optimization.stage=3", "zero_optimization.stage3_param_persistence_threshold=0"}};
  for (const std::vector<std::string>& way : ways) {
    Wide model;
    Make(model, way);
    const auto step = [&] {
      Rows rows;
      return engine_->Step(rows, [&](const at::Tensor& x) {
        return Loss(model.Loss(x.to(model.weight.scalar_type())), kRows);
      });
    };
    for (int i = 1; i <= 5; ++i) {
      const auto report = step();
      ASSERT_TRUE(report.ok()) << report.status();
    }
    model.weight.set_data(at::zeros({64, 64}, model.weight.options()));
    const auto report = step();
    EXPECT_EQ(report.status().code(), absl::StatusCode::kFailedPrecondition) << way.front();
    EXPECT_THAT(std::string(report.status().message()),
                HasSubstr("parameter weight is in other memory"))
        << way.front();
    engine_.reset();
  }
}

// A program as a user would write it: a weight gets other memory after the fifth step.
absl::Status TrainAndMove(Job& job) {
  Wide model;
  DT_ASSIGN_OR_RETURN(const auto engine, Engine::Create(job, model));
  for (int step = 1; step <= 10; ++step) {
    Rows rows;
    DT_RETURN_IF_ERROR(
        engine->Step(rows, [&](const at::Tensor& x) { return Loss(model.Loss(x), kRows); })
            .status());
    std::fprintf(stderr, "step %d is done\n", step);
    if (step == 5) {
      model.weight.set_data(model.weight.detach().clone());
    }
  }
  return absl::OkStatus();
}

int RunProgram() {
  const testing::TempFolder folder;
  const std::string config = folder.path() + "/config.json";
  std::ofstream(config) << R"({"train_batch_size": 1, "train_steps": 10})";
  std::vector<std::string> words = {"program", config, "--run-dir", folder.path() + "/run"};
  std::vector<char*> arguments;
  for (std::string& word : words) {
    arguments.push_back(word.data());
  }
  return Main(static_cast<int>(arguments.size()), arguments.data(), TrainAndMove);
}

TEST(EngineReportDeathTest, AProgramThatMovesAParameterEndsWithExitCode64) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::exit(RunProgram()), ::testing::ExitedWithCode(64),
              "step 5 is done(.|\n)*parameter weight is in other memory");
}

}  // namespace
}  // namespace dtrain::engine_report_test
