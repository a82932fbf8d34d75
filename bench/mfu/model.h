// The model that is measured: examples/gpt in the shape of a Hugging Face config.json.
#pragma once

#include <functional>
#include <memory>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "bench/mfu/options.h"
#include "dtrain/dtrain.h"

namespace torch::nn {
class Module;
}

namespace dtrain::bench {

// A shape that has been read and checked; nothing is allocated yet.
struct ModelShape {
  std::string name;
  Json config;
  int64_t vocabulary = 0;
  int64_t positions = 0;  // Most tokens of a sequence.
};

struct BenchModel {
  std::shared_ptr<torch::nn::Module> module;
  std::function<Loss(const Batch&)> loss;
  FlopModel flops;
  double layer_parameters =
      0;  // Those of the layers: recomputed with --recompute full, in FP8 with fp8.
};

// The preset or the file that `options` name. Errors name what is not supported.
absl::StatusOr<ModelShape> ReadModel(const MfuOptions& options);

// Random weights; sharded while they are made at ZeRO stage 3 (Construct), else made on a GPU where
// the job has one, matrices as `type` there: a host takes minutes for billions of numbers.
absl::StatusOr<BenchModel> MakeModel(Job& job, const ModelShape& shape, at::ScalarType type);

}  // namespace dtrain::bench
