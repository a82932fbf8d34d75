// The batch triple of DeepSpeed: T = train_batch_size, M = train_micro_batch_size_per_gpu,
// G = gradient_accumulation_steps, W = world size; T = M * G * W. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"

namespace dtrain::plan {

struct BatchRequest {
  std::optional<int64_t> train_batch;
  std::optional<int64_t> micro_batch;
  std::optional<int64_t> accumulation;
};

struct BatchSizes {
  int64_t train_batch = 0;
  int64_t micro_batch = 0;
  int64_t accumulation = 0;
};

// Fills what is absent: T,M -> G; T,G -> M; M,G -> T; T -> G = 1 and M; M -> G = 1 and T.
// InvalidArgument, naming all four numbers and the nearest sizes that fit, when they do not go
// together, when only G is given, or nothing. REQUIRES: world_size >= 1.
absl::StatusOr<BatchSizes> SolveBatch(const BatchRequest& request, int64_t world_size);

}  // namespace dtrain::plan
