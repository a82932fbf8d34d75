#include "bench/mfu/options.h"

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "base/console/command_line.h"
#include "base/status.h"
#include "bench/mfu/measure_steps.h"
#include "bench/mfu/presets.h"

namespace dtrain::bench {
namespace {

// The model that trains, and how.
void AddTrainingOptions(CLI::App& app, MfuOptions& options) {
  auto* const preset =
      app.add_option("--preset", options.preset,
                     absl::StrCat("Shape of a published model. Allowed: ", PresetNames()))
          ->type_name("NAME")
          ->capture_default_str();
  app.add_option("--hf", options.hf_file,
                 "Use the shape in this config.json of a Hugging Face model. Default: --preset")
      ->type_name("FILE")
      ->excludes(preset);
  app.add_option("--device", options.device, "Device to train on")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--dtype", options.dtype, "Type of the numbers in matrix products")
      ->check(CLI::IsMember({"fp32", "bf16", "fp8"}))
      ->capture_default_str();
  app.add_option("--zero", options.zero_stage, "ZeRO stage")
      ->check(CLI::Range(0, 3))
      ->capture_default_str();
  app.add_option("--micro-batch", options.micro_batch, "Sequences of a rank in a micro-batch")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--accumulation", options.accumulation, "Micro-batches of a rank in a step")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--seq", options.sequence,
                 "Tokens of a sequence. Default: 1024, or fewer where the model takes fewer")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  app.add_option("--recompute", options.recompute, "What backward computes again")
      ->check(CLI::IsMember({"none", "full"}))
      ->capture_default_str();
  app.add_option("--attention", options.attention,
                 "Attention kernel. auto leaves the choice to LibTorch; cudnn needs a GPU")
      ->check(CLI::IsMember({"auto", "flash", "cudnn", "math"}))
      ->capture_default_str();
}

// The measured steps and the results.
void AddMeasurementOptions(CLI::App& app, MfuOptions& options) {
  app.add_option("--steps", options.steps, "Measured steps; the median counts")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_option("--warm-up", options.warm_up, "Steps before the measured ones")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_option(
         "--short-steps", options.short_micro_batches,
         "Use only N micro-batches in warm-up steps and in the profiled step, to save time "
         "where --accumulation is large. Two whole steps, which are not measured, follow the "
         "warm-up then. Default: whole steps")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  app.add_option(
         "--peak-tflops", options.peak_tflops,
         "Peak of the device for dense products of this type, in 1e12 FLOP/s. Default: from "
         "a table of GPUs; for a CPU, the GEMM rate measured in the run")
      ->check(CLI::PositiveNumber);
  app.add_flag("--bf16-states", options.bf16_states,
               "Keep AdamW's states in bf16; needs --dtype bf16 or fp8. Default: fp32");
  app.add_option("--set", options.overrides,
                 "Change a value of the configuration: KEY=VALUE. May be repeated. Default: no "
                 "change")
      ->option_text("KEY=VALUE")
      ->allow_extra_args(false);
  app.add_option("--json", options.json_file,
                 "Also write the results to FILE; - prints them. Default: no file")
      ->type_name("FILE");
  app.add_option("--svg", options.svg_file, "Draw a roofline into FILE. Default: no file")
      ->type_name("FILE");
}

}  // namespace

int ParseMfuOptions(int argc, char** argv, MfuOptions& options) {
  CLI::App app(
      "Trains a model on random tokens and prints how much of the machine's arithmetic the "
      "training uses: MFU (strict: only what the model needs), PaLM-style MFU, HFU, the share of "
      "the GEMM rate measured in the same run, and where the time of a step goes.",
      "dtrain bench mfu");
  app.footer(
      "Examples:\n"
      "  dtrain bench mfu --preset gpt2-124m --device cpu --steps 5\n"
      "  dtrain bench mfu --hf config.json --dtype bf16 --seq 512 --svg roofline.svg\n"
      "  dtrain launch --nproc-per-node 2 -- dtrain-bench-mfu --preset gpt2-124m --zero 2");
  AddTrainingOptions(app, options);
  AddMeasurementOptions(app, options);
  if (const auto code = ParseCommandLine(app, argc, argv)) {
    return *code;
  }
  return -1;
}

std::vector<std::string> EngineSettings(const MfuOptions& options, int world_size) {
  std::vector<std::string> settings = {
      absl::StrCat("device=", options.device),
      absl::StrCat("train_micro_batch_size_per_gpu=", options.micro_batch),
      absl::StrCat("gradient_accumulation_steps=", options.accumulation),
      absl::StrCat("train_batch_size=", options.micro_batch * options.accumulation * world_size),
      absl::StrCat("train_steps=",
                   options.warm_up + UnmeasuredWholeSteps(options) + options.steps + 1),
      absl::StrCat("zero_optimization.stage=", options.zero_stage),
      absl::StrCat("activation_checkpointing.mode=", options.recompute),
      "gradient_clipping=1.0",
      "checkpoint.interval=0",
      "eval_interval=0",
      "metrics.interval=1000000"};
  if (options.dtype != "fp32") {
    settings.push_back("bf16.enabled=true");
    settings.push_back(
        absl::StrCat("bf16.bf16_optimizer_states=", options.bf16_states ? "true" : "false"));
    settings.push_back(absl::StrCat("fp8.enabled=", options.dtype == "fp8" ? "true" : "false"));
  }
  settings.insert(settings.end(), options.overrides.begin(), options.overrides.end());
  return settings;
}

}  // namespace dtrain::bench
