// The training that FP8 is compared with bf16 by.
#pragma once

#include <string>
#include <vector>

#include "tests/examples/gpt_training.h"

inline GptTraining Fp8CurveTraining(Architecture architecture, int steps,
                                    const std::vector<std::string>& settings) {
  constexpr int64_t kRows = 8;
  constexpr int64_t kSequence = 32;
  GptTraining training{
      .options = SmallGpt(architecture,
                          {.vocabulary = 64, .heads = 4, .head_dim = 16, .intermediate = 128}),
      .settings = {"bf16.enabled=true"},
      .batches = ChainBatches(steps, kRows, kSequence),
      .steps = steps};
  training.settings.insert(training.settings.end(), settings.begin(), settings.end());
  return training;
}
