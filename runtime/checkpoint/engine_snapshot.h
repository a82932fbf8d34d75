// An engine's state as the tensors of a checkpoint; restore/engine_restore.h is the way back.
//
// model/ holds whole tensors under public names, each given by one rank (cut by bytes, in
// registration order). state/ holds this rank's part of the flat moments and its RNG: what it owns
// at ZeRO stages 1 to 3, an equal slice at stage 0, where every rank has all of them; and, with
// module_buffers "local", its module buffers, of which model/ has rank 0's. The rank's
// record says which ranges of the layout they are, so any world size and stage reads them. Weights
// in fp32 are their own master and are not stored twice; in mixed precision model/ has the 2-byte
// weights and state/ the master. With optimizer.skip_unused_parameters state/ also has how many
// updates left each parameter as it was.
//
// A checkpoint may hold several engines: the first is its model; the others' tensors have NAME/ in
// front, and their records stand below "engines". `name` is empty for the first.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/json.h"
#include "checkpoint/state_source.h"
#include "runtime/device/device.h"
#include "runtime/offload/offload_options.h"
#include "runtime/optimizer/engine_state.h"

namespace dtrain {

struct RankPlace {
  int rank = 0;
  int world_size = 1;
  // The tier in which copies of gathered weights wait to be written; by default memory.
  OffloadOptions copies = {};
};

// The part of the moments that `place` stores when every rank has all `total_elements`. Pure.
plan::FlatRange SliceOf(int64_t total_elements, RankPlace place);

// The ranges of the layout whose states and gradients `place` stores: what it owns, or, where every
// rank has all, its slice.
std::vector<plan::OwnedRange> StoredRanges(const EngineState& state, RankPlace place);
// The parameter layout's, in manifests.
std::string LayoutHash(const plan::ParamLayout& layout);
std::string LayoutHash(const EngineState& state);

// Spans into the engines' memory: the engines must not step while the source is used. The vectors
// keep copies (of what a GPU holds, and of gathered weights) alive.
struct EngineSnapshot {
  checkpoint::SpanSource source;
  std::vector<at::Tensor> keep;
  // These two are set before it is taken, for a save by a checkpoint::StagedSource. Gathered
  // weights are left to SpanSource::gathers; else they are copied.
  bool is_staged = false;
  // What lies in the memory of this GPU is left there (checkpoint::NamedTensor::on_device), and
  // copies of what cannot be are only queued on the compute stream. None: all that a GPU holds is
  // copied, and the copies are whole.
  std::optional<at::Device> gpu;

  bool Leaves(const at::Tensor& tensor) const {
    return gpu.has_value() && tensor.device() == *gpu && tensor.is_contiguous();
  }
};

class WrittenModel;  // model_tensors.h

// Takes the snapshots of one engine. Training stands still meanwhile, so that what is the same in
// all of them is found once, and records are made of copied numbers by the thread that writes
// (SpanSource::complete).
class EngineSnapshots {
 public:
  // REQUIRES: `state` outlives this object and its snapshots.
  EngineSnapshots(EngineState& state, RankPlace place, const std::string& name);
  EngineSnapshots(EngineSnapshots&& other) noexcept;
  ~EngineSnapshots();

  // Adds the engine as it is now to a snapshot that has those before it. Collective at ZeRO stage
  // 3, unless the snapshot is staged: weights are gathered one by one.
  absl::Status AddTo(EngineSnapshot& snapshot);
  EngineState& state() const { return state_; }

 private:
  // Gives the progress at the moment of the snapshot, once its copies are whole. Where it
  // `may_be_late`, a GPU need not have ended the last step.
  using ProgressThen = std::function<absl::StatusOr<TrainingProgress>()>;
  absl::StatusOr<ProgressThen> Progress(bool may_be_late);

  EngineState& state_;
  RankPlace place_;
  std::string name_;
  std::unique_ptr<PinnedMemory> verdict_;  // A copy of the last step's; null: there is none yet.
  std::unique_ptr<WrittenModel> model_;
};

// A checkpoint says this of the job beside its engines.
struct JobRecords {
  std::string model;  // The first engine's name.
  Json tracked;       // The values of tracked states.
  Json metrics;       // Of the step; they choose the best checkpoint.
  Json accepted_changes;
  std::string host;  // The one that has this rank's files; "": all hosts have them.
};
// The thread that writes adds them to the source, behind the engines' records.
void AddJobRecords(JobRecords records, checkpoint::SpanSource& source);

// The size of a checkpoint's tensors of this engine, in the files of all ranks together.
uint64_t StoredBytes(const EngineState& state);

}  // namespace dtrain
