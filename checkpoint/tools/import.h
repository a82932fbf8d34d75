// Makes a run directory of weights that another program wrote: its one checkpoint, of step 0, holds
// the weights alone.
//
// The checkpoint has no optimizer states, no masters and no random states, because only the program
// that trains knows its parameter layout. The record `engine` says so: "weights_only" is true. Its
// layout_hash is "".
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/numeric/dtype.h"
#include "checkpoint/format/step_id.h"

namespace dtrain::checkpoint {

// The key of the manifest's `engine` by which a reader knows a checkpoint of weights alone.
inline constexpr char kWeightsOnlyKey[] = "weights_only";

struct WeightImportOptions {
  std::optional<DType> dtype;  // fp32, bf16 or fp16 for all floats; none: as they are.
};

struct WeightImport {
  StepId id;
  size_t tensors = 0;
  uint64_t bytes = 0;  // The size of the tensors.
};

// Reads `source`, a model folder in Hugging Face's form or one .safetensors file, and writes the
// run directory `run_dir`, which appears whole or not at all. AlreadyExists: something is there.
absl::StatusOr<WeightImport> ImportWeights(const std::string& source, const std::string& run_dir,
                                           const WeightImportOptions& options);

}  // namespace dtrain::checkpoint
