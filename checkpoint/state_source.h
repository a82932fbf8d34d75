// The seam to the engine: the tensors and records of one snapshot.
//
// The writer calls a source from one thread, during one Save; the snapshot must not change
// meanwhile (StagedSource lets it). runtime implements it (SpanSource serves most cases); nothing
// here knows LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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
  // gives each name; tied tensors are given once. The first call of a save.
  virtual absl::StatusOr<std::vector<TensorSpec>> ModelTensors() = 0;
  // Gives the bytes of ModelTensors()[index] to `sink`, in order and in as many parts as it likes.
  // Returns the sink's first error. Called once for each index, in any order.
  virtual absl::Status GiveModel(size_t index, ByteSink sink) = 0;

  // This rank's state (master weights, moments, RNG...) for state/rank-R-of-N.safetensors. An empty
  // list gives an empty file.
  virtual absl::StatusOr<std::vector<TensorSpec>> StateTensors() = 0;
  virtual absl::Status GiveState(size_t index, ByteSink sink) = 0;

  // Small files for model/ beside the weights: {"config.json", text}, tokenizer... Called on rank
  // 0.
  virtual absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ModelFiles() = 0;
  // The state that is the same on all ranks. Called on rank 0.
  virtual absl::StatusOr<JobState> Job() = 0;
  // The state of this rank, an object of at most 1 MiB. Called on every rank.
  virtual absl::StatusOr<Json> Rank() = 0;
};

// How long bytes of a snapshot stay as they are.
enum class BytesStay : uint8_t {
  kWithSnapshot,  // The snapshot owns them.
  kUntilUpdate,   // The next update of the weights changes them.
  kUntilStep,     // The next forward or the program may change them.
};

struct NamedTensor {
  TensorSpec spec;
  absl::Span<const std::byte> bytes;
  BytesStay stay = BytesStay::kWithSnapshot;
  // The host cannot read them: a device copies them for a StagedSource. They stay until the next
  // update.
  bool on_device = false;
};

// A source over memory that the caller owns.
class SpanSource final : public StateSource {
 public:
  absl::Status status;  // Why there is no snapshot: then all ranks give the save up.
  std::vector<NamedTensor> model;
  std::vector<NamedTensor> state;
  std::vector<std::pair<std::string, std::string>> model_files;
  JobState job;
  Json rank = Json::object();
  // Called in this order before the writer reads anything, by the thread that writes, so that the
  // thread that takes a snapshot only copies values. They may fill the three above and the memory
  // of tensors that the snapshot owns, but add no tensor.
  std::vector<std::function<void(SpanSource&)>> complete;

  absl::StatusOr<std::vector<TensorSpec>> ModelTensors() override;
  absl::Status GiveModel(size_t index, ByteSink sink) override;
  absl::StatusOr<std::vector<TensorSpec>> StateTensors() override;
  absl::Status GiveState(size_t index, ByteSink sink) override;
  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ModelFiles() override;
  absl::StatusOr<JobState> Job() override;
  absl::StatusOr<Json> Rank() override;

 private:
  bool is_complete_ = false;
};

}  // namespace dtrain::checkpoint
