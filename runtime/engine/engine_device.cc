// The engine on a GPU. A step is queued without waiting for the device: what the host must know of
// it (how many samples, who failed, who stops) is agreed on over the host group, what the device
// finds out (loss, norm, whether the gradient is finite) stays there, decides there, and is read
// when the next step's update is queued: by then the device has passed it.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status.h"
#include "runtime/engine/engine_impl.h"
#include "runtime/gradients/device_gradients.h"
#include "runtime/gradients/partitioned_on_device.h"
#include "runtime/model/phase.h"
#include "runtime/offload/offload_options.h"
#include "runtime/plan/layout/bucket_plan.h"
#include "runtime/plan/optimizer/lr_schedule.h"

namespace dtrain {
namespace {

absl::Status NotOnDevice(absl::string_view what, absl::string_view instead) {
  return absl::UnimplementedError(absl::StrFormat(
      "%s is not supported on a GPU yet: %s, or set device to \"cpu\"", what, instead));
}

}  // namespace

EngineState& Engine::state() {
  impl_->DropWeightCodes();  // Who restores weights bumps no counter of theirs.
  impl_->state.settled = impl_->AccountForLastStep();
  impl_->state.settled.Update(impl_->SettleGathers());
  impl_->state.settled.Update(impl_->torn);
  return impl_->state;
}

// Before anything is changed: what a GPU cannot do yet, by name.
absl::Status Engine::Impl::CheckDevice() const {
  if (device().is_host()) {
    return absl::OkStatus();
  }
  const Config& config = job.config();
  switch (ParameterOffload(config).device) {
    case OffloadOptions::Device::kNone:
    case OffloadOptions::Device::kMemory:
      break;
    case OffloadOptions::Device::kFile:
      // Their rule takes weights from everywhere before the buckets' turn.
      if (const auto kind = config.optimizer().kind;
          !UpdatesOnHost() &&
          (kind == OptimizerConfig::Kind::kLamb || kind == OptimizerConfig::Kind::kMuon)) {
        return NotOnDevice(
            absl::StrFormat("offload_param.device \"nvme\" with %s and without offload_optimizer",
                            config.optimizer().name()),
            "set offload_optimizer.device to \"cpu\" or \"nvme\", or offload_param.device to "
            "\"cpu\"");
      }
      break;
  }
  if (config.activation_checkpointing().tier == ActivationCheckpointingConfig::Tier::kFile) {
    return NotOnDevice("activation_checkpointing.nvme_path",
                       "remove it, set activation_checkpointing.cpu_checkpointing");
  }
  return absl::OkStatus();
}

// Gradients and values over the device group, and the end of a step on the device.
absl::Status Engine::Impl::CreateOnDevice() {
  const Config& config = job.config();
  comm::DeviceGroup& group = *job.state().device_group;
  DeviceGradientOptions options{.shards = state.shards.get(),
                                .deterministic = config.deterministic(),
                                .compression = CompressionOf(config)};
  options.bucket_elements = plan::BucketElements(config, state.flat->layout().total_elements());
  std::unique_ptr<DeviceGradientSync> gradients;
  if (config.zero_stage() < 2) {
    DT_ASSIGN_OR_RETURN(gradients, DeviceGradients::Create(device(), group, *state.flat, options));
  } else {
    DT_ASSIGN_OR_RETURN(gradients,
                        PartitionedOnDevice::Create(device(), group, *state.flat, *state.shards,
                                                    {.wire = WireOf(config),
                                                     .deterministic = options.deterministic,
                                                     .quantized = config.quantized_gradients()}));
  }
  device_gradients = gradients.get();
  reducer = std::move(gradients);
  if (state.shards != nullptr && state.live == nullptr) {
    DT_ASSIGN_OR_RETURN(gather, ParameterGather::Create(group, *state.flat, *state.shards));
  }
  DT_RETURN_IF_ERROR(CreateShareReturn());
  std::unique_ptr<DeviceRule> device_rule;
  if (!UpdatesOnHost()) {
    DT_ASSIGN_OR_RETURN(device_rule, MakeDeviceRule(config, *rule, state.flat->layout()));
  }
  DT_ASSIGN_OR_RETURN(device_step,
                      DeviceStep::Create(device(), group, std::move(device_rule), settings.size()));
  if (small_group.device != nullptr) {
    device_step->Watch(*small_group.device);
  }
  return absl::OkStatus();
}

void Engine::Impl::BeginOnDevice() {
  if (device_step != nullptr) {
    job.state().device_group->SetStep(state.step + 1);
    broken.Update(device_step->Begin());
  }
}

void Engine::Impl::MarkPhase(DevicePhases::Phase phase) {
  if (device_step != nullptr) {
    broken.Update(device_step->Mark(phase));
  }
}

absl::Status Engine::Impl::AddLoss(const at::Tensor& sum) {
  if (device_step != nullptr) {
    return device_step->AddLoss(sum);
  }
  loss_sum += sum.item<double>();
  return absl::OkStatus();
}

// The outcome of the step that the device ended last, into the state: the same on every rank, and
// before anything follows from it (bias corrections, the loss's scale, a checkpoint).
absl::Status Engine::Impl::AccountForLastStep() {
  if (!unaccounted.has_value()) {
    return absl::OkStatus();
  }
  const Config& config = job.config();
  DT_RETURN_IF_ERROR(
      device_step->Settle(Deadline::After(absl::Seconds(config.comm_timeout_seconds()))));
  const StepReport done = *std::exchange(unaccounted, std::nullopt);
  const plan::LossScale scale = state.loss_scale;
  if (unaccounted_count > 0) {
    state.loss_scale = plan::NextLossScale(config.precision(), scale, done.skipped);
  }
  if (done.skipped) {
    ++state.skipped;
    unsaid = done;
    scale_of_unsaid = scale;
  } else {
    CountUpdate();
    EndSkipping();
  }
  return absl::OkStatus();
}

// Collective, when a step was skipped: which parameter went bad.
absl::Status Engine::Impl::SaySkipped() {
  if (!unsaid.has_value()) {
    return absl::OkStatus();
  }
  const StepReport skipped = *std::exchange(unsaid, std::nullopt);
  if (unaccounted_count == 0) {
    return AfterNoTarget(skipped);
  }
  DT_ASSIGN_OR_RETURN(int64_t first, device_gradients->squares().FirstNonFinite());
  first = first < 0 ? std::numeric_limits<int64_t>::max() : first;
  DT_ASSIGN_OR_RETURN(
      const comm::Work work,
      job.group().AllReduce({&first, sizeof(first), DType::kInt64, {}}, comm::ReduceOp::kMin,
                            {.name = "first non-finite gradient", .caller_waits = true}));
  DT_RETURN_IF_ERROR(work.Wait());
  const auto& entries = state.flat->layout().entries();
  // A norm block may hold several small parameters: the first is named.
  const auto entry = std::find_if(entries.begin(), entries.end(), [&](const auto& candidate) {
    return candidate.offset + candidate.elements > first;
  });
  return AfterSkip(skipped, entry != entries.end() ? entry->name : "the whole model",
                   scale_of_unsaid);
}

absl::Status Engine::Impl::LaunchUpdate(const StepVerdict& verdict) {
  const Config& config = job.config();
  DT_RETURN_IF_ERROR(reducer->status());
  DT_RETURN_IF_ERROR(device_gradients->QueueSquares(device_step->squares()));
  StepPlan plan{.update = StepOf(1.0),
                .norm_max = config.gradient_clipping(),
                .count = verdict.count,
                .squares_of_shard = device_gradients->squares().of_shard()};
  if (verdict.count > 0) {
    plan.to_mean = 1.0 / (static_cast<double>(verdict.count) * loss_factor());
  }
  DT_RETURN_IF_ERROR(device_step->Decide(plan));
  report.loss_scale = state.loss_scale.scale;
  report.learning_rate = plan::LrAt(config.scheduler(), state.updates);
  DT_RETURN_IF_ERROR(DropGathered());
  DT_RETURN_IF_ERROR(exchange != nullptr       ? UpdateThroughHost(plan)
                     : share_return != nullptr ? UpdateIntoFile()
                                               : QueueUpdate());
  if (state.live != nullptr) {
    MarkPhase(&StepNumbers::exposed_comm_s);
    DT_RETURN_IF_ERROR(state.live->Refresh());
  }
  if (gather != nullptr) {
    MarkPhase(&StepNumbers::exposed_comm_s);
    DT_RETURN_IF_ERROR(gather->JoinStream(*job.state().device_group, device().stream()));
    DT_RETURN_IF_ERROR(device_step->QueueNumbers());
  }
  DT_ASSIGN_OR_RETURN(late, device_step->End());
  return absl::OkStatus();
}

absl::StatusOr<StepReport> Engine::Impl::UpdateOnDevice() {
  DT_RETURN_IF_ERROR(AccountForLastStep());
  DT_RETURN_IF_ERROR(SaySkipped());
  std::optional<StepVerdict> verdict;
  {
    const ScopedPhase phase("dtrain::wait", report.exposed_comm_s);
    DT_ASSIGN_OR_RETURN(verdict, Vote({}, false));
  }
  if (verdict->failed) {
    Abandon();
    return absl::AbortedError(absl::StrFormat("rank %d failed in step %d; see its message",
                                              verdict->failed_rank, state.step + 1));
  }
  DT_RETURN_IF_ERROR(TakeUnused(*verdict));
  {
    const ScopedPhase phase("dtrain::update", report.update_s);
    absl::Status launched = SettleBuffers(*verdict);
    if (launched.ok()) {
      launched = LaunchUpdate(*verdict);
    }
    if (!launched.ok()) {
      FailTogether();  // The others' devices would wait for this rank's part.
      broken = launched;
      return launched;
    }
    if (transaction != nullptr) {  // A bad batch must not stay in running statistics.
      transaction->RestoreBuffersWhere(device_step->skip_flag());
      buffers->Remember();
    }
  }
  if (verdict->stop_signal != 0) {
    job.AgreeToStop(verdict->stop_signal);
  }
  StepReport finished = Finish(*verdict);
  finished.late = late;
  finished.loss = Late<double>(late, &StepNumbers::loss);
  finished.grad_norm = Late<double>(late, &StepNumbers::grad_norm);
  finished.skipped = Late<bool>(late, &StepNumbers::skipped);
  unaccounted = finished;
  unaccounted_count = verdict->count;
  if (absl::Status adopted = reducer->AdoptReadinessOrder(job.group(), {}); !adopted.ok()) {
    FailTogether();  // It may be of this rank alone: memory for the new cut.
    broken = adopted;
    return adopted;
  }
  if (graphs != nullptr) {
    graphs->EndStep();
  }
  gemm_probe.AfterStep(/*seconds=*/0);  // They are not known yet, and a GPU does not repeat.
  return finished;
}

}  // namespace dtrain
