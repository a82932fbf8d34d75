// The seam to the engine: the tensors and records of one snapshot.
//
// The writer calls a source from one thread, during one Save; the snapshot must not change
// meanwhile (StagedSource lets it). runtime implements it (SpanSource serves most cases); nothing
// here knows LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/json.h"
#include "base/numeric/dtype.h"
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
  kInGather,      // They are there only while the tensor is gathered (SpanSource::gathers).
};

struct NamedTensor {
  TensorSpec spec;
  absl::Span<const std::byte> bytes;
  BytesStay stay = BytesStay::kWithSnapshot;
  // The host cannot read them: a device copies them for a StagedSource.
  bool on_device = false;
};

// A tensor that is whole only now and then, because each rank has a part of it.
struct Gather {
  std::string name;  // In the checkpoint, as its type.
  DType dtype = DType::kFloat32;
  int64_t model = -1;  // Its place in SpanSource::model; -1: another rank writes it.
  // Collective. Runs `function` while the tensor is whole.
  std::function<absl::Status(absl::FunctionRef<void()> function)> run;
};

// A source over memory that the caller owns.
class SpanSource final : public StateSource {
 public:
  absl::Status status;  // Why there is no snapshot: then all ranks give the save up.
  std::vector<NamedTensor> model;
  std::vector<NamedTensor> state;
  // Run in this order, by the thread that has taken the snapshot and a StagedSource of it, before
  // that thread does anything else. The tensors that they name are in the order of `model`, and
  // that is the writer's (SortAsWritten).
  std::vector<Gather> gathers;
  std::vector<std::pair<std::string, std::string>> model_files;
  JobState job;
  Json rank = Json::object();
  // Called in this order before the writer reads anything, by the thread that writes, so that the
  // thread that takes a snapshot only copies values. They may fill the three above and the memory
  // of tensors that the snapshot owns, or set `status`, but add no tensor.
  std::vector<std::function<void(SpanSource&)>> complete;

  // Brings `model` and `gathers` into the order in which a writer takes the tensors of `model`, so
  // that it never waits for one whose gather itself waits until the writer has taken others. The
  // same order of gathers on every rank.
  void SortAsWritten();

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
