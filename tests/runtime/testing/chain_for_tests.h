// A small model of several buckets, and what ranks that train it end with: for tests of ZeRO.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "dtrain/engine.h"
#include "dtrain/job.h"
#include "tests/testing/cluster.h"
#include "torch/nn/module.h"

namespace dtrain::testing {

// Several buckets of odd layout: a chain of layers, a norm with a fused kernel, weights read
// through views and lists, one weight used at both ends, one never.
class Chain : public torch::nn::Module {
 public:
  Chain();
  // The sum over rows of the loss of predicting the row's own token.
  at::Tensor Loss(const at::Tensor& tokens);

  at::Tensor table, norm, unused;
  std::vector<at::Tensor> weights, biases;  // [64, 64] and [64].
};

// 36 tokens a step, split over ranks and micro-batches.
struct Tokens {
  int64_t call = 0;
  int rank = 0;
  int size = 1;
  int accumulation = 1;
  absl::StatusOr<at::Tensor> Next();
  void Restart() { call = 0; }
};

// A step of an engine that trains `model`, a Chain or what has its Loss.
template <class Model>
absl::StatusOr<StepReport> TakeStep(Engine& engine, Model& model, Tokens& source) {
  return engine.Step(
      source, [&](const at::Tensor& tokens) { return Loss(model.Loss(tokens), tokens.size(0)); });
}

struct ChainWay {
  int stage = 3;
  int accumulation = 1;
  std::vector<std::string> more = {};                // Overrides.
  bool lends = false;                                // The weights to a function, after every step.
  std::vector<std::vector<std::string>> units = {};  // EngineOptions::units.
};

// Limits of ZeRO stage 3 that must not change any bit: the smallest that there are, some between,
// and none.
inline constexpr const char* kLimits[][3] = {
    {"zero_optimization.stage3_max_live_parameters=0",
     "zero_optimization.stage3_prefetch_bucket_size=0",
     "zero_optimization.stage3_max_reuse_distance=0"},
    {"zero_optimization.stage3_max_live_parameters=20000",
     "zero_optimization.stage3_prefetch_bucket_size=10000",
     "zero_optimization.stage3_max_reuse_distance=1000000000"},
    {"zero_optimization.stage3_max_live_parameters=1000000000",
     "zero_optimization.stage3_prefetch_bucket_size=50000000",
     "zero_optimization.stage3_max_reuse_distance=20000"}};

// Deterministic; every weight is shared out, however small. `context` null: one rank alone. Several
// jobs of one cluster need several names of a `group`.
absl::StatusOr<std::unique_ptr<Job>> MakeChainJob(RankContext* context, const std::string& folder,
                                                  const ChainWay& way,
                                                  const std::string& group = "world");

// Loss and norm of five steps, an evaluation after the third, a checksum of all weights: 12
// numbers, which every rank must have to the bit.
std::vector<double> ChainNumbers(int size, const ChainWay& way);

// The numbers of each way. The same ranks train one after the other, because starting ranks costs
// more than a training.
std::vector<std::vector<double>> ChainNumbersOfEach(int size, const std::vector<ChainWay>& ways);

// Expects every way to have the numbers of the first, and gives these.
std::vector<double> ExpectSameNumbers(int size, const std::vector<ChainWay>& ways);

// Whether the memory of a weight may be read, asked without an operation.
bool IsOpen(const at::Tensor& weight);

}  // namespace dtrain::testing
