// The end of a step on a GPU, in stream operations alone: losses and norms of all ranks are summed
// on the device, a kernel turns them into the clip factor and the flag that skips the update, the
// update reads both there. The host learns the numbers later, from pinned memory.
//
// Plan and Launch: Create plans, all else launches. The numbers that change by step (learning
// rates, bias corrections, clip limit, loss scale) are uploaded to one fixed place in device
// memory. Driven by the thread that trains.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "comm/nccl/device_group.h"
#include "dtrain/late.h"
#include "kernels/optimizer/step_verdict.h"
#include "runtime/device/device.h"
#include "runtime/engine/device/device_phases.h"
#include "runtime/optimizer/device_rule.h"

namespace dtrain {

// The host's knowledge of a step when it queues its end.
struct StepPlan {
  UpdateStep update;    // Without gradient_scale, which the device finds.
  double to_mean = 0;   // The mean's gradient is the reduced one times this.
  double norm_max = 0;  // gradient_clipping; 0: none.
  int64_t count = 0;    // Samples behind the loss's sum, of all ranks.
  bool squares_of_shard = false;
};

struct DeviceStepOptions {
  size_t settings = 0;     // Groups of parameters.
  absl::Duration timeout;  // The longest wait for a step's numbers.
};

class DeviceStep {
 public:
  // Collective. REQUIRES: `device` and `group` outlive it. `rule` is null where the host updates.
  static absl::StatusOr<std::unique_ptr<DeviceStep>> Create(const Device& device,
                                                            comm::DeviceGroup& group,
                                                            std::unique_ptr<DeviceRule> rule,
                                                            const DeviceStepOptions& options);
  // Settles what is under way, within the timeout.
  ~DeviceStep();
  // A step's numbers are worthless too when `group`, which outlives this object, is broken.
  void Watch(const comm::DeviceGroup& group) { watched_.push_back(&group); }

  // Queues the begin of a step: the loss's sum is 0.
  absl::Status Begin();
  absl::Status Mark(DevicePhases::Phase phase) { return phases().Mark(phase); }
  // Adds a micro-batch's sum. InvalidArgument: it is elsewhere.
  absl::Status AddLoss(const at::Tensor& sum);
  // Where DeviceGradients puts this rank's sum of squares.
  double* squares() const { return &own_tally()->sum_of_squares; }

  // Uploads the step's numbers and queues the exchange of tallies; the compute stream waits for the
  // group's.
  // REQUIRES: the squares are queued on the group's stream; the step before is settled.
  absl::Status Decide(const StepPlan& plan);
  // In place of Decide, for a step that is taken again: `total` is what the ranks had together.
  absl::Status DecideAgain(const StepPlan& plan, const kernels::StepTally& total);
  // Queues the verdict, the update of `pieces`, the copy of the step's numbers for the host: of all
  // three what changes by step is in memory, so that a graph may hold them.
  absl::Status QueueVerdict() const;
  // Before the first Update of a step.
  absl::Status Prepare(const EngineState& state, const ReducedGradient& gradient,
                       absl::Span<const std::vector<UpdatePiece>> pieces);
  absl::Status Update(const EngineState& state, const ReducedGradient& gradient,
                      absl::Span<const UpdatePiece> pieces) const;
  absl::Status QueueNumbers() const;
  // Whether the three are kernels and copies of the compute stream alone.
  bool can_be_graph() const { return rule_ != nullptr && !rule_->looks_beyond_elements(); }
  // For an update on the host: waits for the verdict of the step last decided, whose numbers are
  // queued; the step goes on. Its loss, norm and whether it is skipped. Errors as Settle's.
  absl::StatusOr<StepNumbers> AwaitVerdict(Deadline deadline);
  // Queues the end of the step; its numbers come later.
  absl::StatusOr<std::shared_ptr<LateNumbers>> End();

  // [1] int32 on the device: not 0 when the step last decided changes nothing.
  const at::Tensor& skip_flag() const { return skip_flag_; }
  // In device memory: what QueueVerdict decides.
  kernels::StepVerdictNumbers* verdict() const;
  // Why what the device made of the last step is worthless, once it has passed it. Thread-safe.
  absl::Status Health() const;
  // Waits for the numbers of that step. DeadlineExceeded, or the error that broke the group.
  absl::Status Settle(Deadline deadline);

 private:
  class Pending;
  DeviceStep(const Device& device, comm::DeviceGroup& group, std::unique_ptr<DeviceRule> rule,
             const DeviceStepOptions& options);
  Deadline deadline() const { return Deadline::After(timeout_); }
  absl::Status Allocate();
  kernels::StepTally* own_tally() const;
  kernels::StepTally* tallies() const;
  std::byte* scalars() const;
  size_t upload_bytes() const;
  // Until the device has passed the last mark of `phases`.
  absl::Status Passed(const DevicePhases& phases, Deadline deadline) const;
  // Reads the verdict that has landed. REQUIRES: the device has passed QueueNumbers.
  void ReadVerdict(StepNumbers& numbers) const;
  void WriteInputs(const StepPlan& plan) const;
  DevicePhases& phases() const { return *phases_[parity_]; }

  const Device& device_;
  comm::DeviceGroup& group_;
  std::vector<const comm::DeviceGroup*> watched_;  // It and others.
  const std::unique_ptr<DeviceRule> rule_;
  const size_t settings_;
  const absl::Duration timeout_;
  // Device memory: StepInputs and the groups' scalars (uploaded); the ranks' tallies; the verdict.
  std::shared_ptr<DeviceMemory> memory_;
  std::unique_ptr<PinnedMemory> upload_;  // Holds what is copied to the first two.
  std::unique_ptr<PinnedMemory> landed_;  // A copy of the verdict.
  at::Tensor loss_sum_;                   // [1] fp64: this rank's tally.
  at::Tensor skip_flag_;
  // The marks of this step and of the one before, which may still be ahead of the device.
  std::unique_ptr<DevicePhases> phases_[2];
  size_t parity_ = 0;
  StepPlan plan_;                     // The step that was decided last.
  std::shared_ptr<Pending> pending_;  // Ended, not settled.
  absl::Status broken_;               // Why a step's numbers never came.
};

}  // namespace dtrain
