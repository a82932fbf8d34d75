// The parts of a step that differ between the host and a GPU. The engine runs one sequence for both
// (engine_core.h) and calls these in its order.
//
// The host waits for its reductions, knows the norm when the ranks agree, and updates at once. On a
// GPU all of that is queued: the device adds up the norm, decides whether the step changes
// anything, and the host learns it one step later. Driven by the thread that trains.
#pragma once

#include <cstdint>
#include <optional>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtrain/metrics.h"
#include "runtime/engine/agreement.h"
#include "runtime/engine/device/device_phases.h"
#include "runtime/gradients/gradient_sync.h"
#include "runtime/optimizer/engine_state.h"

namespace dtrain {

class StepStrategy {
 public:
  virtual ~StepStrategy() = default;

  // A step begins: its loss is 0.
  virtual absl::Status Begin() = 0;
  // Work that is queued from here on belongs to `phase`; null: to none.
  virtual absl::Status Mark(DevicePhases::Phase phase) = 0;
  // Adds the sum of a micro-batch's losses.
  virtual absl::Status AddLoss(const at::Tensor& sum) = 0;

  // How the step before ended is in the state from here on: whether it changed weights, and the
  // next loss scale.
  virtual absl::Status SettleLastStep() = 0;
  // That step, while the state does not say how it ended, if all that follows is in the progress.
  virtual std::optional<UnsettledStep> Unsettled() const { return std::nullopt; }
  // Collective: what is to be said of that step is said. An error ends the run on all ranks.
  virtual absl::Status ReportLastStep() = 0;

  // Collective: puts into the vote what the host knows by then of this rank's loss and of the
  // reduced gradient, on a GPU nothing.
  virtual absl::Status Fill(StepVote& vote) = 0;
  // Collective, behind the agreement: what comes before weights change.
  virtual absl::Status Prepare(const StepVerdict& verdict) = 0;
  // Collective, behind Prepare: changes weights, or nothing where the step is skipped, and
  // makes them whole on all ranks. An error may leave weights of two steps.
  virtual absl::Status Update(const StepVerdict& verdict, StepReport& report) = 0;
  // Collective, in place of all the above: updates once more as a step did that ended with this
  // verdict, by the gradient that is in place, and accounts for it.
  virtual absl::Status Replay(const StepVerdict& verdict, StepReport& report) = 0;
  // Not null: a flag on the device that says whether the step changed nothing. Then the host does
  // not know it yet.
  virtual const at::Tensor* skip_flag() const = 0;
  // The step has ended as `report` says: on the host says at once what is to be said of it, on a
  // GPU puts numbers into it that come later. An error ends the run on all ranks.
  virtual absl::Status End(const StepVerdict& verdict, StepReport& report) = 0;
};

}  // namespace dtrain
