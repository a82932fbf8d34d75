// The command line of `dtrain bench mfu`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json.h"

namespace dtrain::bench {

struct MfuOptions {
  std::string preset = "gpt2-124m";
  std::string hf_file;  // config.json of Hugging Face, in place of a preset.
  std::string device = "cpu";
  std::string dtype = "fp32";
  std::string recompute = "none";
  std::string attention = "auto";  // The kernel, as model.attention_backend.
  int zero_stage = 0;
  int64_t micro_batch = 1;
  int64_t accumulation = 1;
  int64_t sequence = 0;  // 0: 1,024, or what the model has.
  int steps = 10;
  int warm_up = 3;
  int64_t short_micro_batches = 0;  // Number in warm-up and profiled steps; 0: as in the others.
  double peak_tflops = 0;           // 0: the table, or measured.
  bool bf16_states = false;
  std::vector<std::string> overrides;  // KEY=VALUE of the engine's configuration.
  std::string json_file;               // "-": standard output, in place of the table.
  std::string svg_file;
};

// -1: go on, else the exit code.
int ParseMfuOptions(int argc, char** argv, MfuOptions& options);

// The configuration of the engine, as --set's KEY=VALUE.
std::vector<std::string> EngineSettings(const MfuOptions& options, int world_size);

}  // namespace dtrain::bench
