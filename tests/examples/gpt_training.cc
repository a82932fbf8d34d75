#include "tests/examples/gpt_training.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "base/status.h"
#include "gpt/gpt.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace {

using dtrain::Batch;

constexpr uint64_t kSeed = 5;

Batch On(const at::Device& device, Batch batch) {
  batch.tokens = batch.tokens.to(device);
  batch.targets = batch.targets.to(device);
  if (batch.positions.defined()) {
    batch.positions = batch.positions.to(device);
  }
  return batch;
}

// Batches in a device's memory, in turn: all that a step reads is there before it begins.
struct Cycle {
  std::vector<Batch> batches;
  size_t call = 0;
  absl::StatusOr<Batch> Next() { return batches[call++ % batches.size()]; }
};

at::Tensor Weights(const Gpt& model) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& parameter : model->parameters()) {
    flat.push_back(parameter.detach().to(at::kCPU, at::kFloat).flatten());
  }
  return at::cat(flat);
}

using WatchStep =
    std::function<absl::StatusOr<StepCosts>(const std::function<absl::Status()>& step)>;

// Numbers of a step are read after the last: reading one waits.
absl::Status RunSteps(const GptTraining& training, dtrain::Engine& engine, Gpt& model,
                      Cycle& source, const WatchStep& watch, GptOutcome& outcome) {
  std::vector<dtrain::StepReport> reports;
  const auto step = [&]() -> absl::Status {
    DT_ASSIGN_OR_RETURN(reports.emplace_back(), engine.Step(source, [&](const Batch& batch) {
      return model->Loss(batch);
    }));
    return absl::OkStatus();
  };
  for (int i = 0; i < training.steps; ++i) {
    if (i == training.watched_step) {
      DT_ASSIGN_OR_RETURN(outcome.costs, watch(step));
    } else {
      DT_RETURN_IF_ERROR(step());
    }
  }
  for (const dtrain::StepReport& report : reports) {
    outcome.losses.push_back(report.loss);
    outcome.norms.push_back(report.grad_norm);
  }
  return absl::OkStatus();
}

absl::Status Train(const GptTraining& training, TrainingPlace* place, GptOutcome& outcome) {
  std::vector<std::string> overrides = {
      "train_micro_batch_size_per_gpu=1", "gradient_clipping=1.0",
      R"(optimizer={"type":"AdamW","params":{"lr":0.004,"weight_decay":0.01}})"};
  overrides.insert(overrides.end(), training.settings.begin(), training.settings.end());
  const dtrain::testing::TempFolder folder;
  DT_ASSIGN_OR_RETURN(
      auto job, dtrain::testing::MakeTestJob({.run_dir = folder.path(), .overrides = overrides}));
  if (place != nullptr) {
    DT_RETURN_IF_ERROR(place->Attach(job->state()));
  }
  at::manual_seed(kSeed);
  GptOptions options = training.options;
  options.fp8 = dtrain::Fp8OptionsOf(job->config());
  options.recompute = job->config().activation_checkpointing();
  Gpt model(options);
  DT_ASSIGN_OR_RETURN(auto engine, dtrain::Engine::Create(*job, *model));
  Cycle source;
  for (const Batch& batch : training.batches) {
    source.batches.push_back(On(job->device(), batch));
  }
  // Codes of FP8 weights are made before the first launch of a step, by operations as any.
  const bool by_graphs = job->config().Find("cuda_graphs")->get<bool>() && !options.fp8.enabled;
  const WatchStep watch = [&](const auto& step) { return place->Watch(step, by_graphs); };
  DT_RETURN_IF_ERROR(RunSteps(training, *engine, model, source, watch, outcome));
  return engine->WithParameters([&] { outcome.weights = Weights(model); });
}

}  // namespace

absl::StatusOr<GptOutcome> TrainGpt(const GptTraining& training, TrainingPlace* place) {
  GptOutcome outcome;
  ::testing::internal::CaptureStderr();
  const absl::Status status = Train(training, place, outcome);
  outcome.log = ::testing::internal::GetCapturedStderr();
  DT_RETURN_IF_ERROR(status);
  return outcome;
}

absl::StatusOr<GptOutcome> TrainGptHere(const GptTraining& training) {
  const std::unique_ptr<TrainingPlace> place = TrainingPlace::Open();
  return TrainGpt(training, place.get());
}

std::vector<Batch> RandomBatches(int count, int64_t rows, int64_t sequence, int64_t vocabulary) {
  at::Generator generator = at::detail::createCPUGenerator(kSeed);
  const at::TensorOptions ids(at::kLong);
  std::vector<Batch> batches;
  for (int i = 0; i < count; ++i) {
    batches.push_back({.tokens = at::randint(vocabulary, {rows, sequence}, generator, ids),
                       .targets = at::randint(vocabulary, {rows, sequence}, generator, ids),
                       .targets_counted = rows * sequence});
  }
  return batches;
}

std::vector<Batch> ChainBatches(int count, int64_t rows, int64_t sequence) {
  at::Generator generator = at::detail::createCPUGenerator(kSeed);
  const at::TensorOptions ids(at::kLong);
  std::vector<Batch> batches;
  for (int i = 0; i < count; ++i) {
    at::Tensor texts = at::randint(64, {rows, sequence + 1}, generator, ids);
    const at::Tensor chance = at::randint(8, texts.sizes(), generator, ids).eq(0);
    for (int64_t place = 1; place <= sequence; ++place) {
      const at::Tensor follows = (texts.select(1, place - 1) * 5 + 7) % 64;
      at::Tensor here = texts.select(1, place);
      here.copy_(at::where(chance.select(1, place), here, follows));
    }
    batches.push_back({.tokens = texts.slice(1, 0, sequence).contiguous(),
                       .targets = texts.slice(1, 1).contiguous(),
                       .targets_counted = rows * sequence});
  }
  return batches;
}

double MeanOfLast(const std::vector<double>& losses, size_t count) {
  double sum = 0;
  for (size_t i = losses.size() - count; i < losses.size(); ++i) {
    sum += losses[i];
  }
  return sum / static_cast<double>(count);
}
