// How the gradients of backward become the reduced gradient of a step. On the host there is one
// form for each ZeRO stage: GradientReducer at 0, ShardedGradients at 1, PartitionedGradients at 2
// and 3.
//
// Gradients that a program's own backward leaves in .grad between steps, from Release to
// BeginMicroBatch, are the program's: they stay there until the program or the next step clears
// them, or that step counts them (EngineOptions::zero_grad). Driven by one thread at a time
// (gradient_collector.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "comm/group.h"
#include "runtime/model/flat_parameters.h"
#include "runtime/plan/layout/launch_queue.h"
#include "runtime/plan/layout/shard_plan.h"

namespace dtrain {

// The sum of squares of the reduced (summed, not averaged) gradient.
struct GradientSquares {
  double sum = 0;
  bool of_shard = false;  // Over what this rank owns; else over everything, equal on all ranks.
};

// Where the reduced gradient is: element `flat` of the layout at data[flat], or, when `by_shard`,
// element `local` of the shard at data[local].
struct ReducedGradient {
  const float* data = nullptr;
  bool by_shard = false;

  const float* at(int64_t flat, int64_t local) const { return data + (by_shard ? local : flat); }
  // The place of an element inside a range that this rank owns.
  const float* at(const plan::OwnedRange& owned, int64_t element) const {
    return at(element, owned.local_of(element));
  }
};

// The ranges of the layout whose reduced gradient this rank has when Wait has returned.
struct ReducedRanges {
  absl::Span<const plan::OwnedRange> ranges;
  bool shared_out = false;  // The others have the rest; else every rank has everything.
};

class GradientSync {
 public:
  virtual ~GradientSync() = default;
  // Before each backward of `step` (from 1); `last`: of the step.
  virtual void BeginMicroBatch(int64_t step, bool last) = 0;
  // After each backward.
  virtual absl::Status FinishBackward() = 0;
  // Waits for all reductions of the step.
  virtual absl::StatusOr<GradientSquares> Wait() = 0;
  // After Wait, until Release.
  virtual ReducedGradient reduced() const = 0;
  // By parameter: whether this rank has a gradient of it in the step. After the step's last
  // FinishBackward, until Release.
  virtual std::vector<uint8_t> used() const = 0;
  // Memory that gradients and their buckets take.
  virtual int64_t bytes() const = 0;
  // Ends a step: gradients are undefined, buckets empty. Also how a failed step is abandoned.
  virtual void Release() = 0;
  // First error inside a hook or behind a launch (a sparse gradient, a collective that could not
  // start).
  virtual const absl::Status& status() const = 0;

  // Stage 3: the buckets of a unit, which has these entries of the layout, are reduced when it has
  // ended, at the same place of backward on all ranks. REQUIRES: no step is under way.
  virtual void UseUnits(std::vector<std::vector<size_t>> /*units*/) {}
  // In backward: what has no gradient of the unit here by now gets none.
  virtual void EndUnit(size_t /*unit*/) {}
  // Entries of the layout in the order in which their gradients came in this backward, or in the
  // last one; without those that had none.
  const std::vector<int>& readiness() const { return queue().readiness(); }

  // Collective, after each step: takes rank 0's order of readiness, once; later what Tune does.
  absl::Status AdoptReadinessOrder(comm::Group& group);

 private:
  virtual const plan::LaunchQueue& queue() const = 0;
  // `order` of readiness, equal on all ranks; entries that are missing were unused.
  virtual absl::Status UseReadinessOrder(const std::vector<int>& order) = 0;
  // Collective, after a step in that order: may cut buckets anew.
  virtual absl::Status Tune() { return absl::OkStatus(); }

  bool order_adopted_ = false;
};

}  // namespace dtrain
