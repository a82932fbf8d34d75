// Trains the example's Transformer by the engine, on a TrainingPlace or on the host: what the tests
// of training on a device compare.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dtrain/dtrain.h"
#include "tests/examples/training_place.h"

struct GptTraining {
  GptOptions options;                      // FP8 comes from the settings.
  std::vector<std::string> settings = {};  // Beside AdamW's, overrides of the configuration.
  std::vector<dtrain::Batch> batches;      // Micro-batches, again and again.
  int steps = 0;
  int watched_step = -1;  // From 0: its costs are counted.
};

struct GptOutcome {
  std::vector<double> losses;
  std::vector<double> norms;
  at::Tensor weights;  // All, flat, in fp32 on the host.
  StepCosts costs;
  std::string log;  // The engine's words on stderr.
};

// `place`: null for the host. The error of a place names what it lacks: FP8 units, a kernel of
// attention.
absl::StatusOr<GptOutcome> TrainGpt(const GptTraining& training, TrainingPlace* place);
// In a place opened for it.
absl::StatusOr<GptOutcome> TrainGptHere(const GptTraining& training);

// Micro-batches of random tokens of `vocabulary` ids, the targets too: to be learnt by heart.
std::vector<dtrain::Batch> RandomBatches(int count, int64_t rows, int64_t sequence,
                                         int64_t vocabulary);

// Every token follows from the one before it, one time in eight from chance, of 64 ids: about 0.9
// nats remain, and log(64) = 4.16 is where training starts.
std::vector<dtrain::Batch> ChainBatches(int count, int64_t rows, int64_t sequence);

double MeanOfLast(const std::vector<double>& losses, size_t count);
