// The state that an engine trains: weights, moments, step. Read and restored by the checkpointer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/numeric/dtype.h"
#include "dtrain/engine.h"
#include "kernels/optimizer/adamw_rounded.h"
#include "kernels/optimizer/step_verdict.h"
#include "runtime/model/flat_parameters.h"
#include "runtime/optimizer/step_end.h"
#include "runtime/plan/layout/shard_plan.h"
#include "runtime/plan/optimizer/loss_scale.h"
#include "runtime/shard/live_parameters.h"
#include "runtime/shard/secondary_shards.h"

namespace dtrain {

struct UpdatePiece;  // update_pieces.h

// One number that the optimizer keeps of each element.
struct StateSlot {
  std::string name;   // In checkpoints.
  at::Tensor tensor;  // fp32 or bf16: [total elements] or [shard elements].
};

// The optimizer's states of the elements that this rank updates.
struct OptimizerStates {
  std::string name;              // The optimizer's, in checkpoints.
  std::vector<StateSlot> slots;  // In its order.
  at::Tensor master;  // Weights in fp32, the slots' shape; undefined where the values are fp32.
};

// Frozen weights at ZeRO stage 3, shared out as those that train are, with nothing beside them.
struct FrozenShards {
  std::unique_ptr<FlatParameters> flat;
  std::vector<plan::FlatRange> units;  // Ranges of its layout, as the program has named them.
  std::unique_ptr<plan::ShardPlan> shards;
  std::vector<plan::OwnedRange> owned;
  at::Tensor values;  // The values that this rank owns: [shard elements] of flat->dtype().
  std::unique_ptr<LiveParameters> live;
};

// How far training has come: the numbers that steps change beside weights and slots.
struct TrainingProgress {
  int64_t step = 0;     // Steps finished.
  int64_t updates = 0;  // Steps that changed weights: bias correction goes by them.
  int64_t skipped = 0;
  // With optimizer.skip_unused_parameters, by entry of the layout: of the updates, those that left
  // it as it was. Else empty.
  std::vector<int64_t> missed;
  plan::LossScale loss_scale;
  // fp16: gradients are made of the loss's sum over this many samples, a power of two near what the
  // first micro-batch counted, so that they are as large as those of a mean. 0: not known yet.
  double loss_unit = 0;
};

// A step on a GPU that has ended for the host, which does not know yet whether it changed anything.
struct UnsettledStep {
  // In device memory: what is queued on the compute stream now finds the step's verdict there.
  const kernels::StepVerdictNumbers* verdict = nullptr;
  // The progress when that is known. For any thread, as the next.
  std::function<TrainingProgress(bool skipped)> progress;
  // Once the device has passed the step: why what came of it is worthless.
  std::function<absl::Status()> health;
};

// How the last step ended.
struct LastStep {
  // Why a device did not say so, or its weights did not come: then nothing may be saved.
  absl::Status status;
  // For a save. Brings this and the engine's progress up to date, and waits for a GPU; or, if the
  // step `may_be_unsettled`, gives it and does not wait.
  std::function<std::optional<UnsettledStep>(bool may_be_unsettled)> settle;
};

// A step on a GPU whose reduced gradient is complete for what is queued on the compute stream.
struct ReducedOnDevice {
  GradientMemory gradient;
  // In device memory: the verdict of the step, from the end of its update until the next step's.
  const kernels::StepVerdictNumbers* verdict = nullptr;
  // For any thread, once the device has passed the step: why what came of it is worthless.
  std::function<absl::Status()> health;
};

// How parts of a piece are updated on the host, from any thread. A part is named by its first
// element in the piece.
struct PartUpdate {
  // By the gradient that is given.
  absl::FunctionRef<void(int64_t begin, int64_t elements, const float* gradient)> by;
  // By the piece's own gradient, which is rounded to bf16 and kept in the pass that updates. Sums
  // are of the weights in fp32. REQUIRES: `rounds`.
  bool rounds;
  absl::FunctionRef<kernels::WeightSums(int64_t begin, int64_t elements,
                                        const kernels::KeptGradient& kept)>
      rounded;
};

// Calls by which saves and a step journal take part in a step. Each is null if nobody needs it.
struct StepHooks {
  // What this rank's save in the background says in the agreement of a step, as bits, and what the
  // saves of all ranks have said there together. So saves need no exchange of their own.
  std::function<uint32_t()> save_vote;
  std::function<void(uint32_t all)> take_save_votes;
  // Called before weights and states change, by all ranks `together` in a step, or by one rank
  // alone: a save in the background reads them.
  std::function<absl::Status(bool together)> before_update;
  // Called by all ranks between the agreement of a step and its update.
  std::function<void(const StepEnd& end)> keep_step;
  // On the host, updates a piece by `update` of parts that together are the piece. `gradient` is
  // the piece's.
  std::function<void(const UpdatePiece& piece, const float* gradient, const PartUpdate& update)>
      update_piece;
  // On a GPU, before the update is queued: what is queued here may change the gradient.
  std::function<absl::Status(const ReducedOnDevice& reduced)> gradient_reduced;
  // Called when that update has ended, or is queued, before the program can write to a weight.
  std::function<void()> step_updated;
};

class EngineState {
 public:
  std::unique_ptr<FlatParameters> flat;
  std::unique_ptr<plan::ShardPlan> shards;  // ZeRO stages 1 to 3; null at stage 0.
  std::vector<plan::FlatRange> units;       // Ranges of the layout, as the program has named them.
  // The ranges of the layout whose states the optimizer's slots hold, in that order: all of it at
  // stage 0.
  std::vector<plan::OwnedRange> owned;
  OptimizerStates optimizer;
  SmallGroup small_group;  // zero_hpz_partition_size: of all weights; else none.
  // ZeRO stage 3: the values of what this rank owns, [shard elements] of flat->dtype(), and what
  // gathers the others' before they are read. Undefined and null at the other stages.
  at::Tensor shard_values;
  std::unique_ptr<LiveParameters> live;
  std::unique_ptr<FrozenShards> frozen;  // Null below stage 3, and when there are none.
  // The values of a bucket while a GPU updates it and the share is a file: `data` is the value at
  // `local` of the share. Null: they are in the share itself.
  struct ValueWindow {
    std::byte* data = nullptr;
    int64_t local = 0;
  };
  ValueWindow window;
  bool local_buffers = false;  // module_buffers "local": each rank has its own.
  int zero_stage = 0;
  TrainingProgress progress;
  EngineOptions options;
  LastStep last_step;
  StepHooks hooks;

  // The sets of parameters that are gathered: none below stage 3.
  std::vector<LiveParameters*> lives() const {
    std::vector<LiveParameters*> all;
    if (live != nullptr) {
      all.push_back(live.get());
    }
    if (frozen != nullptr && frozen->live != nullptr) {
      all.push_back(frozen->live.get());
    }
    return all;
  }

  // The address of a value that this rank updates: `element` of the layout, `local` of what the
  // rank owns. Beside ReducedGradient::at nothing else knows where values are.
  std::byte* value_at(int64_t element, int64_t local) const {
    if (window.data != nullptr) {
      return window.data + static_cast<size_t>(local - window.local) * DTypeBytes(flat->dtype());
    }
    const size_t width = DTypeBytes(flat->dtype());
    if (shard_values.defined()) {
      return static_cast<std::byte*>(shard_values.mutable_data_ptr()) +
             static_cast<size_t>(local) * width;
    }
    return flat->value_bytes() + static_cast<size_t>(element) * width;
  }
};

}  // namespace dtrain
