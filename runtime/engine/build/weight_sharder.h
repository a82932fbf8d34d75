// ZeRO stage 3: makes the weights that a rank keeps, and what gathers the others.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtrain/job.h"
#include "runtime/engine/build/shard_layout.h"
#include "runtime/optimizer/engine_state.h"
#include "runtime/shard/gather_memory.h"
#include "runtime/shard/live_parameters.h"

namespace dtrain {

class WeightSharder {
 public:
  // REQUIRES: all outlive this object; the shard plans of `state` are made.
  WeightSharder(Job& job, EngineState& state, const LeafModules& leaf_modules)
      : job_(job), state_(state), leaf_modules_(leaf_modules) {}

  // Memory for what a rank owns, and `values` [elements] over it.
  absl::StatusOr<ShardMemory> MakeShard(int64_t elements, at::Tensor& values);
  // Collective: what gathers the weights that train, whose shares are in `memory`.
  absl::Status GatherTrained(const ShardMemory& memory);
  // Collective: moves frozen weights into shards of their own. REQUIRES: state.frozen.
  absl::Status ShareOutFrozen();

 private:
  // Weights that are shared out together.
  struct LiveSet {
    FlatParameters& flat;
    const plan::ShardPlan& shards;
    const at::Tensor& values;   // This rank's elements of them,
    const ShardMemory& memory;  // and where these are.
    PersistenceLimits persistence;
    int64_t live_max = 0;
    const std::vector<plan::FlatRange>& units;
  };
  const Device& device() const;
  absl::StatusOr<std::unique_ptr<LiveParameters>> MakeLive(const LiveSet& set);

  Job& job_;
  EngineState& state_;
  const LeafModules& leaf_modules_;
};

}  // namespace dtrain
