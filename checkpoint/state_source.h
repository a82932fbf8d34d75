// The seam to the engine: the tensors and records of one snapshot.
//
// The writer calls a source from one thread, during one Save; the snapshot must not change
// meanwhile. runtime implements it (SpanSource serves most cases); nothing here knows LibTorch.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/json.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/safetensors.h"

namespace dtrain::checkpoint {

class StateSource {
 public:
  virtual ~StateSource() = default;

  // Whole tensors under their public names that THIS rank writes into model/. Exactly one rank
  // gives each name; tied tensors are given once.
  virtual absl::StatusOr<std::vector<TensorSpec>> ModelTensors() = 0;
  // Bytes of ModelTensors()[index], valid until the next call on the source; called once for each
  // index.
  virtual absl::StatusOr<absl::Span<const std::byte>> ModelBytes(size_t index) = 0;

  // This rank's state (master weights, moments, RNG...) for state/rank-R-of-N.safetensors. An empty
  // list gives an empty file.
  virtual absl::StatusOr<std::vector<TensorSpec>> StateTensors() = 0;
  virtual absl::StatusOr<absl::Span<const std::byte>> StateBytes(size_t index) = 0;

  // Small files for model/ beside the weights: {"config.json", text}, tokenizer... Called on rank
  // 0.
  virtual absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ModelFiles() = 0;
  // The state that is the same on all ranks. Called on rank 0.
  virtual absl::StatusOr<JobState> Job() = 0;
  // The state of this rank, an object of at most 1 MiB. Called on every rank.
  virtual absl::StatusOr<Json> Rank() = 0;
};

struct NamedTensor {
  TensorSpec spec;
  absl::Span<const std::byte> bytes;
};

// A source over memory that the caller owns.
class SpanSource final : public StateSource {
 public:
  std::vector<NamedTensor> model;
  std::vector<NamedTensor> state;
  std::vector<std::pair<std::string, std::string>> model_files;
  JobState job;
  Json rank = Json::object();

  absl::StatusOr<std::vector<TensorSpec>> ModelTensors() override;
  absl::StatusOr<absl::Span<const std::byte>> ModelBytes(size_t index) override;
  absl::StatusOr<std::vector<TensorSpec>> StateTensors() override;
  absl::StatusOr<absl::Span<const std::byte>> StateBytes(size_t index) override;
  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ModelFiles() override;
  absl::StatusOr<JobState> Job() override;
  absl::StatusOr<Json> Rank() override;
};

}  // namespace dtrain::checkpoint
