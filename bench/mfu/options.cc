#include "bench/mfu/options.h"

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "bench/mfu/presets.h"

namespace dtrain::bench {

int ParseMfuOptions(int argc, char** argv, MfuOptions& options) {
  CLI::App app(
      "Trains a model on random tokens and says how much of the machine's arithmetic that used:\n"
      "MFU (strict: what the model needs; docs/PERFORMANCE.md has the formula), PaLM-style MFU, "
      "HFU,\nthe share of the GEMM rate of the same run, and where a step's time "
      "goes.\n\nExamples:\n"
      "  dtrain bench mfu --preset gpt2-124m --device cpu --steps 5\n"
      "  dtrain bench mfu --hf config.json --dtype bf16 --seq 512 --svg roofline.svg\n"
      "  dtrain launch --nproc-per-node 2 -- dtrain-bench-mfu --preset gpt2-124m --zero 2\n",
      "dtrain bench mfu");
  auto* const preset =
      app.add_option("--preset", options.preset, absl::StrCat("A published shape: ", PresetNames()))
          ->capture_default_str();
  app.add_option("--hf", options.hf_file, "config.json of a Hugging Face model, in its place")
      ->excludes(preset);
  app.add_option("--device", options.device, "cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--dtype", options.dtype, "What is multiplied: fp32, bf16 or fp8")
      ->check(CLI::IsMember({"fp32", "bf16", "fp8"}))
      ->capture_default_str();
  app.add_option("--zero", options.zero_stage, "ZeRO stage")
      ->check(CLI::Range(0, 3))
      ->capture_default_str();
  app.add_option("--micro-batch", options.micro_batch, "Sequences of a rank at a time")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--accumulation", options.accumulation, "Micro-batches of a rank in a step")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--seq", options.sequence,
                 "Tokens of a sequence; default 1024, or the model's most")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  app.add_option("--recompute", options.recompute, "What backward computes again: none, full")
      ->check(CLI::IsMember({"none", "full"}))
      ->capture_default_str();
  app.add_option("--attention", options.attention,
                 "Its kernel: flash, cudnn (a GPU's), math, or auto, LibTorch's choice")
      ->check(CLI::IsMember({"auto", "flash", "cudnn", "math"}))
      ->capture_default_str();
  app.add_option("--steps", options.steps, "Measured steps; the median counts")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_option("--warm-up", options.warm_up, "Steps before them")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_option("--short-steps", options.short_micro_batches,
                 "Micro-batches of warm-up steps and of the profiled one, where --accumulation has "
                 "hundreds; one whole step follows the warm-up then, unmeasured")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  app.add_option(
         "--peak-tflops", options.peak_tflops,
         "Dense peak of a device in this type, 1e12 FLOP/s; default: the table of GPUs, and "
         "for a CPU the GEMM rate measured in the run")
      ->check(CLI::PositiveNumber);
  app.add_flag("--bf16-states", options.bf16_states,
               "AdamW's states in bf16 (with --dtype bf16 or fp8)");
  app.add_option("--set", options.overrides, "KEY=VALUE of the configuration; may be repeated")
      ->allow_extra_args(false);
  app.add_option("--json", options.json_file, "Write the results to this file; - prints them");
  app.add_option("--svg", options.svg_file, "Draw a roofline into this file");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {  // CLI11's one way to report, --help included.
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  return -1;
}

std::vector<std::string> EngineSettings(const MfuOptions& options, int world_size) {
  std::vector<std::string> settings = {
      absl::StrCat("device=", options.device),
      absl::StrCat("train_micro_batch_size_per_gpu=", options.micro_batch),
      absl::StrCat("gradient_accumulation_steps=", options.accumulation),
      absl::StrCat("train_batch_size=", options.micro_batch * options.accumulation * world_size),
      absl::StrCat("train_steps=", options.warm_up + options.steps + 2),
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
