// Text from a trained byte-level model.
#pragma once

#include <cstdint>
#include <string>

#include "gpt/gpt.h"

struct SampleOptions {
  std::string prompt = "\n";
  int64_t bytes = 300;
  double temperature = 0.8;
  int64_t top_k = 40;  // 0: all.
  uint64_t seed = 1;
};

// `prompt` and what the model writes after it. Runs without gradients, in eval mode.
std::string Sample(GptImpl& model, const SampleOptions& options);

// `text` with everything that is not printable ASCII, tab or newline as '.'.
std::string Printable(const std::string& text);
