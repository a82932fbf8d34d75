#include "runtime/engine/device/device_strategy.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "kernels/optimizer/grad_norm.h"
#include "runtime/engine/kept_steps.h"
#include "runtime/engine/live_passes.h"
#include "runtime/gradients/reduced_gradient.h"
#include "runtime/job/job_state.h"
#include "runtime/model/phase.h"
#include "runtime/plan/optimizer/loss_scale.h"

namespace dtrain {

DeviceStrategy::DeviceStrategy(Job& job, EngineState& state, UpdatePlan& plan,
                               DeviceGradientSync& gradients, Parts parts)
    : job_(job),
      state_(state),
      plan_(plan),
      gradients_(gradients),
      parts_(std::move(parts)),
      skipped_(job.config(), state) {
  if (job.config().cuda_graphs()) {
    graph_ = std::make_unique<UpdateGraph>(device(), WhyNoGraph());
  }
}

const Device& DeviceStrategy::device() const { return *job_.state().device; }

Deadline DeviceStrategy::deadline() const {
  return Deadline::After(absl::Seconds(job_.config().comm_timeout_seconds()));
}

std::string DeviceStrategy::WhyNoGraph() const {
  if (parts_.exchange != nullptr) {
    return "where the host updates, it makes them when it knows the verdict";
  }
  if (parts_.share_return != nullptr) {
    return "with offload_param.device \"nvme\" the host takes new values to the file";
  }
  if (parts_.gather != nullptr) {
    return "at zero_optimization.stage 1 and 2 gathers of weights come between their parts";
  }
  if (job_.config().optimizer().skip_unused) {
    return "with optimizer.skip_unused_parameters an update takes other parameters from step to "
           "step";
  }
  if (!parts_.step->can_be_graph()) {
    return absl::StrCat("optimizer ", parts_.rule->name(),
                        " works on whole parameters, with all ranks");
  }
  return "";
}

absl::Status DeviceStrategy::Begin() {
  job_.state().device_group->SetStep(state_.progress.step + 1);
  return parts_.step->Begin();
}

// The same on every rank, and before anything follows from it: bias corrections, the loss's scale,
// a checkpoint.
absl::Status DeviceStrategy::SettleLastStep() {
  if (!unaccounted_.has_value()) {
    return absl::OkStatus();
  }
  DT_RETURN_IF_ERROR(parts_.step->Settle(deadline()));
  Account(*std::exchange(unaccounted_, std::nullopt));
  return absl::OkStatus();
}

void DeviceStrategy::Account(EndedStep done) {
  done.scale = state_.progress.loss_scale;
  if (done.count > 0) {
    state_.progress.loss_scale =
        plan::NextLossScale(job_.config().precision(), done.scale, done.report.skipped);
  }
  if (done.report.skipped) {
    ++state_.progress.skipped;
    unreported_ = std::move(done);
  } else {
    plan_.Count();
    skipped_.End();
  }
}

// The progress that it gives is the one that Account will make.
std::optional<UnsettledStep> DeviceStrategy::Unsettled() const {
  if (!unaccounted_.has_value() || job_.config().optimizer().skip_unused) {
    return std::nullopt;
  }
  return UnsettledStep{.verdict = parts_.step->verdict(),
                       .progress =
                           [precision = job_.config().precision(), count = unaccounted_->count,
                            before = state_.progress](bool skipped) {
                             TrainingProgress after = before;
                             if (count > 0) {
                               after.loss_scale =
                                   plan::NextLossScale(precision, before.loss_scale, skipped);
                             }
                             ++(skipped ? after.skipped : after.updates);
                             return after;
                           },
                       .health = [step = parts_.step.get()] { return step->Health(); }};
}

absl::Status DeviceStrategy::ReportLastStep() {
  if (!unreported_.has_value()) {
    return absl::OkStatus();
  }
  const EndedStep skipped = *std::exchange(unreported_, std::nullopt);
  if (skipped.count == 0) {
    return OnAllRanks(skipped_.NoTarget(skipped.report));
  }
  DT_ASSIGN_OR_RETURN(const std::string culprit, Culprit());
  return OnAllRanks(skipped_.NonFinite(skipped.report, culprit, skipped.scale));
}

// Collective: which parameter's gradient went bad in the step that was skipped.
absl::StatusOr<std::string> DeviceStrategy::Culprit() {
  DT_ASSIGN_OR_RETURN(int64_t first, gradients_.squares().FirstNonFinite());
  first = first < 0 ? std::numeric_limits<int64_t>::max() : first;
  DT_ASSIGN_OR_RETURN(first, LeastOfRanks(job_.group(), first));
  const auto& entries = state_.flat->layout().entries();
  // A norm block may hold several small parameters: the first is named.
  const auto entry = std::find_if(entries.begin(), entries.end(), [&](const auto& candidate) {
    return candidate.offset + candidate.elements > first;
  });
  return entry != entries.end() ? entry->name : "the whole model";
}

absl::Status DeviceStrategy::Update(const StepVerdict& verdict, StepReport& report) {
  const ScopedPhase phase("dtrain::update", report.update_s);
  DT_RETURN_IF_ERROR(gradients_.QueueSquares(parts_.step->squares()));
  StepPlan plan = PlanOf(verdict);
  plan.squares_of_shard = gradients_.squares().of_shard();
  DT_RETURN_IF_ERROR(parts_.step->Decide(plan));
  if (state_.hooks.gradient_reduced) {
    DT_RETURN_IF_ERROR(state_.hooks.gradient_reduced(
        {.gradient = MemoryOfReduced(gradients_),
         .verdict = parts_.step->verdict(),
         .health = [step = parts_.step.get()] { return step->Health(); }}));
  }
  return Apply(plan, report);
}

StepPlan DeviceStrategy::PlanOf(const StepVerdict& verdict) const {
  return {.update = plan_.StepOf(1.0),
          .to_mean = ToMean(job_.config(), state_, verdict.count),
          .norm_max = plan_.engine().gradient_clipping,
          .count = verdict.count};
}

absl::Status DeviceStrategy::Apply(const StepPlan& plan, StepReport& report) {
  report.loss_scale = state_.progress.loss_scale.scale;
  report.learning_rate = plan_.learning_rate();
  DT_RETURN_IF_ERROR(DropGathered(state_));
  DT_RETURN_IF_ERROR(parts_.exchange != nullptr       ? UpdateThroughHost(plan)
                     : parts_.share_return != nullptr ? UpdateIntoFile()
                                                      : Queue());
  if (state_.live != nullptr) {
    DT_RETURN_IF_ERROR(Mark(&StepNumbers::exposed_comm_s));
    DT_RETURN_IF_ERROR(state_.live->Refresh());
  }
  if (parts_.gather != nullptr) {
    DT_RETURN_IF_ERROR(Mark(&StepNumbers::exposed_comm_s));
    DT_RETURN_IF_ERROR(parts_.gather->JoinStream(*job_.state().device_group, device().stream()));
    DT_RETURN_IF_ERROR(parts_.step->QueueNumbers());
  }
  DT_ASSIGN_OR_RETURN(late_, parts_.step->End());
  return absl::OkStatus();
}

// The host knows how the step ended. The device decides again all the same, by the same numbers,
// because its kernels read the clip factor there.
absl::Status DeviceStrategy::Replay(const StepVerdict& verdict, StepReport& report) {
  if (!verdict.updates()) {
    report.skipped = true;
    Account({.report = report, .count = verdict.count});
    unreported_.reset();  // It was said when the step was taken.
    return absl::OkStatus();
  }
  DT_RETURN_IF_ERROR(Begin());
  const StepPlan plan = PlanOf(verdict);
  DT_RETURN_IF_ERROR(parts_.step->DecideAgain(
      plan, {.loss_sum = verdict.loss_sum, .sum_of_squares = verdict.sum_of_squares}));
  DT_RETURN_IF_ERROR(Apply(plan, report));
  DT_RETURN_IF_ERROR(End(verdict, report));
  return SettleLastStep();
}

absl::Status DeviceStrategy::Queue() {
  return graph_ == nullptr ? QueueEagerly() : graph_->Run([this] { return QueueEagerly(); });
}

// The verdict, what follows from it and the copy for the host: kernels of dtrain's alone at stage
// 0. With sharded values gathers come between them.
absl::Status DeviceStrategy::QueueEagerly() {
  DT_RETURN_IF_ERROR(parts_.step->QueueVerdict());
  DT_RETURN_IF_ERROR(parts_.step->Prepare(state_, gradients_.reduced(), plan_.pieces()));
  for (size_t bucket = 0; bucket < plan_.buckets(); ++bucket) {
    DT_RETURN_IF_ERROR(parts_.step->Update(state_, gradients_.reduced(), plan_.pieces()[bucket]));
    if (parts_.gather != nullptr) {
      parts_.gather->Start(static_cast<int>(bucket));
    }
  }
  return parts_.gather == nullptr ? parts_.step->QueueNumbers() : absl::OkStatus();
}

// Behind Decide: whether the step changes anything, once the device has come there.
absl::StatusOr<StepNumbers> DeviceStrategy::AwaitVerdict() {
  DT_RETURN_IF_ERROR(parts_.step->QueueVerdict());
  DT_RETURN_IF_ERROR(parts_.step->QueueNumbers());
  return parts_.step->AwaitVerdict(deadline());
}

// Kernels would leave the share's pinned copies as they are in a step that is skipped, so the host
// asks first.
absl::Status DeviceStrategy::UpdateIntoFile() {
  DT_ASSIGN_OR_RETURN(const StepNumbers verdict, AwaitVerdict());
  if (verdict.skipped) {
    return absl::OkStatus();
  }
  const absl::Cleanup over = [this] { state_.window = {}; };
  for (const std::vector<UpdatePiece>& pieces : plan_.pieces()) {
    DT_ASSIGN_OR_RETURN(state_.window, parts_.share_return->Begin(pieces));
    DT_RETURN_IF_ERROR(parts_.step->Update(state_, gradients_.reduced(), pieces));
    DT_RETURN_IF_ERROR(parts_.share_return->End());
  }
  return parts_.share_return->Flush();
}

// A step that is skipped changes nothing, and gathers nothing, on any rank: the verdict has the
// same bits on all.
absl::Status DeviceStrategy::UpdateThroughHost(const StepPlan& plan) {
  DT_ASSIGN_OR_RETURN(const StepNumbers verdict, AwaitVerdict());
  if (verdict.skipped) {
    return absl::OkStatus();
  }
  UpdateStep step = plan.update;
  // The device's own verdict has the same formula (kernels/optimizer/step_verdict.h).
  step.gradient_scale = plan.to_mean * kernels::ClipFactor(verdict.grad_norm, plan.norm_max);
  const ReducedGradient gradient = gradients_.reduced();
  DT_RETURN_IF_ERROR(parts_.rule->Prepare({job_.group(), state_, gradient, plan_.pieces(), step,
                                           parts_.stream.get(), parts_.exchange.get()}));
  const std::vector<StateChunk>& chunks = plan_.Chunks(
      *parts_.rule, [this](const BucketPieces& pieces) { return parts_.exchange->Cut(pieces); });
  return parts_.exchange->Run(
      chunks, gradient, Changes::kValues,
      [&](const UpdatePiece& piece, const PieceMemory& memory) {
        UpdatePieceBy(*parts_.rule, step, piece, memory);
      },
      [&](int bucket) {
        if (parts_.gather != nullptr) {
          parts_.gather->Start(bucket);
        }
      });
}

absl::Status DeviceStrategy::End(const StepVerdict& verdict, StepReport& report) {
  report.late = late_;
  report.loss = Late<double>(late_, &StepNumbers::loss);
  report.grad_norm = Late<double>(late_, &StepNumbers::grad_norm);
  report.skipped = Late<bool>(late_, &StepNumbers::skipped);
  unaccounted_ = EndedStep{.report = report, .count = verdict.count};
  if (graph_ != nullptr) {
    graph_->EndStep();
  }
  return absl::OkStatus();
}

}  // namespace dtrain
