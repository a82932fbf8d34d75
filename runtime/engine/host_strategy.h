// A step on the host: waits for the reduced gradient, then one pass over the flat buffers unscales,
// clips and updates.
#pragma once

#include <memory>
#include <string>

#include "dtrain/job.h"
#include "runtime/engine/skipped_steps.h"
#include "runtime/engine/step_strategy.h"
#include "runtime/engine/update_plan.h"
#include "runtime/optimizer/engine_state.h"
#include "runtime/optimizer/state_stream.h"
#include "runtime/optimizer/update_rule.h"
#include "runtime/shard/parameter_gather.h"

namespace dtrain {

class HostStrategy final : public StepStrategy {
 public:
  struct Parts {
    std::unique_ptr<UpdateRule> rule;
    std::unique_ptr<StateStream> stream;      // Null: states are near.
    std::unique_ptr<ParameterGather> gather;  // Null but at ZeRO stages 1 and 2.
  };
  // REQUIRES: all references outlive this object.
  HostStrategy(Job& job, EngineState& state, UpdatePlan& plan, GradientSync& gradients,
               Parts parts);

  absl::Status Begin() override;
  absl::Status Mark(DevicePhases::Phase /*phase*/) override { return absl::OkStatus(); }
  absl::Status AddLoss(const at::Tensor& sum) override;
  absl::Status SettleLastStep() override { return absl::OkStatus(); }
  absl::Status ReportLastStep() override { return absl::OkStatus(); }
  absl::Status Fill(StepVote& vote) override;
  absl::Status Prepare(const StepVerdict& verdict) override;
  absl::Status Update(const StepVerdict& verdict, StepReport& report) override;
  absl::Status Replay(const StepVerdict& verdict, StepReport& report) override {
    return Update(verdict, report);
  }
  const at::Tensor* skip_flag() const override { return nullptr; }
  absl::Status End(const StepVerdict& verdict, StepReport& report) override;

 private:
  ReducedRanges Reduced() const { return {state_.owned, state_.shards != nullptr}; }
  absl::Status Apply(const StepVerdict& verdict, StepReport& report);
  absl::Status ApplyFromFar(const UpdateStep& step, const ReducedGradient& gradient);

  Job& job_;
  EngineState& state_;
  UpdatePlan& plan_;
  GradientSync& gradients_;
  const Parts parts_;
  SkippedSteps skipped_;
  double loss_sum_ = 0;
  plan::LossScale scale_;  // The loss scale of the step that ends.
  std::string culprit_;    // Its first parameter whose gradient is not finite.
};

}  // namespace dtrain
