// A step on a GPU. A step is queued without waiting for the device. The ranks agree over the host
// group on what the host must know (how many samples, who failed, who stops). The loss, the norm
// and whether the gradient is finite stay on the device, which decides by them; the host reads them
// when it queues the next step's update, by which time the device has passed them.
//
// Where the host updates a GPU's weights (offload_optimizer, or a program's own optimizer), and
// where the weights' share is a file, a step waits for the device: the host's rule takes the clip
// factor as a number, and must not run at all in a step that is skipped.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "comm/nccl/device_group.h"
#include "dtrain/job.h"
#include "runtime/device/device.h"
#include "runtime/engine/device/device_step.h"
#include "runtime/engine/device/update_graph.h"
#include "runtime/engine/skipped_steps.h"
#include "runtime/engine/step_strategy.h"
#include "runtime/engine/update_plan.h"
#include "runtime/gradients/device_gradient_sync.h"
#include "runtime/optimizer/engine_state.h"
#include "runtime/optimizer/share_return.h"
#include "runtime/optimizer/state_stream.h"
#include "runtime/optimizer/update_exchange.h"
#include "runtime/optimizer/update_rule.h"
#include "runtime/shard/parameter_gather.h"

namespace dtrain {

class DeviceStrategy final : public StepStrategy {
 public:
  struct Parts {
    std::unique_ptr<UpdateRule> rule;
    std::unique_ptr<StateStream> stream;        // Offloaded states; null when they are near.
    std::unique_ptr<UpdateExchange> exchange;   // Where the host updates; else null.
    std::unique_ptr<ShareReturn> share_return;  // Where kernels update a share that is a file.
    std::unique_ptr<ParameterGather> gather;    // Null but at ZeRO stages 1 and 2.
    std::unique_ptr<DeviceStep> step;
  };
  // REQUIRES: all references outlive this object.
  DeviceStrategy(Job& job, EngineState& state, UpdatePlan& plan, DeviceGradientSync& gradients,
                 Parts parts);

  absl::Status Begin() override;
  absl::Status Mark(DevicePhases::Phase phase) override { return parts_.step->Mark(phase); }
  absl::Status AddLoss(const at::Tensor& sum) override { return parts_.step->AddLoss(sum); }
  absl::Status SettleLastStep() override;
  std::optional<UnsettledStep> Unsettled() const override;
  absl::Status ReportLastStep() override;
  absl::Status Fill(StepVote& /*vote*/) override { return absl::OkStatus(); }
  absl::Status Prepare(const StepVerdict& /*verdict*/) override { return absl::OkStatus(); }
  absl::Status Update(const StepVerdict& verdict, StepReport& report) override;
  absl::Status Replay(const StepVerdict& verdict, StepReport& report) override;
  const at::Tensor* skip_flag() const override { return &parts_.step->skip_flag(); }
  absl::Status End(const StepVerdict& verdict, StepReport& report) override;

 private:
  // A step that the device has ended, or will, and how its samples and scale were.
  struct EndedStep {
    StepReport report;
    int64_t count = 0;
    plan::LossScale scale = {};
  };

  const Device& device() const;
  Deadline deadline() const;
  std::string WhyNoGraph() const;  // "": nothing speaks against a graph of the update.
  absl::StatusOr<std::string> Culprit();
  // The state learns how a step ended.
  void Account(EndedStep done);
  StepPlan PlanOf(const StepVerdict& verdict) const;
  // Behind the decision: queues what follows from it.
  absl::Status Apply(const StepPlan& plan, StepReport& report);
  absl::Status Queue();
  absl::Status QueueEagerly();
  absl::StatusOr<StepNumbers> AwaitVerdict();
  absl::Status UpdateThroughHost(const StepPlan& plan);
  absl::Status UpdateIntoFile();

  Job& job_;
  EngineState& state_;
  UpdatePlan& plan_;
  DeviceGradientSync& gradients_;
  std::unique_ptr<UpdateGraph> graph_;  // Null: off. Outlives parts_, which waits for its launches.
  const Parts parts_;
  SkippedSteps skipped_;
  std::shared_ptr<LateNumbers> late_;     // Numbers of the step that the device ended last.
  std::optional<EndedStep> unaccounted_;  // It, until the state knows how it ended.
  std::optional<EndedStep> unreported_;   // A skipped one, until the log says so.
};

}  // namespace dtrain
