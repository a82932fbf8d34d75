// The update of a GPU's weights by the host (offload_optimizer, or a program's own rule). Here a
// step waits for the device: the host's rule takes the clip factor as a number, and must not run at
// all in a step that is skipped.
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status.h"
#include "kernels/optimizer/grad_norm.h"
#include "runtime/engine/engine_impl.h"
#include "runtime/offload/offload_options.h"
#include "runtime/plan/memory/offload_plan.h"

namespace dtrain {

OffloadOptions Engine::Impl::StateOffload() const {
  OffloadOptions offload = OptimizerOffload(job.config());
  const bool only_on_host = !device().is_host() && state.options.optimizer != nullptr;
  if (only_on_host && offload.device == OffloadOptions::Device::kNone) {
    offload.device = OffloadOptions::Device::kMemory;
  }
  return offload;
}

bool Engine::Impl::UpdatesOnHost() const {
  return !device().is_host() && StateOffload().device != OffloadOptions::Device::kNone;
}

absl::Status Engine::Impl::CreateExchange(int64_t elements) {
  const Config& config = job.config();
  const OffloadOptions offload = StateOffload();
  if (OptimizerOffload(config).device == OffloadOptions::Device::kNone && job.rank() == 0) {
    DT_LOG(Warning) << "optimizer " << rule->name()
                    << " of the program has no CUDA form: the host updates, and has its states as "
                       "with zero_optimization.offload_optimizer.device \"cpu\"";
  }
  if (offload.device == OffloadOptions::Device::kMemory && offload.ratio < 1 && job.rank() == 0) {
    DT_LOG(Warning) << absl::StrFormat(
        "zero_optimization.offload_optimizer.ratio %g has no effect with device \"cpu\" on a GPU: "
        "all states are in the host's memory",
        offload.ratio);
  }
  DT_ASSIGN_OR_RETURN(
      exchange,
      UpdateExchange::Create(
          device(), state, stream.get(),
          {.chunk_elements = plan::OffloadChunkElements(elements, offload.buffers),
           .buffers = static_cast<int>(plan::ExchangeBuffers(offload.buffers)),
           .values_on_host = ParameterOffload(config).device != OffloadOptions::Device::kNone,
           .timeout = absl::Seconds(config.comm_timeout_seconds())}));
  return absl::OkStatus();
}

// The device updates, and the weights' share is a file.
absl::Status Engine::Impl::CreateShareReturn() {
  const Config& config = job.config();
  if (UpdatesOnHost() || ParameterOffload(config).device != OffloadOptions::Device::kFile) {
    return absl::OkStatus();
  }
  const int64_t elements_max = state.shards->largest_bucket() / job.world_size();
  DT_ASSIGN_OR_RETURN(
      share_return,
      ShareReturn::Create(device(), {static_cast<std::byte*>(state.shard_values.mutable_data_ptr()),
                                     state.flat->dtype(), elements_max,
                                     absl::Seconds(config.comm_timeout_seconds())}));
  return absl::OkStatus();
}

absl::StatusOr<StepNumbers> Engine::Impl::VerdictNow() {
  DT_RETURN_IF_ERROR(device_step->QueueVerdict());
  DT_RETURN_IF_ERROR(device_step->QueueNumbers());
  return device_step->AwaitVerdict(
      Deadline::After(absl::Seconds(job.config().comm_timeout_seconds())));
}

// Kernels would leave buffers as they are in a step that is skipped, so the host asks first.
absl::Status Engine::Impl::UpdateIntoFile() {
  DT_ASSIGN_OR_RETURN(const StepNumbers verdict, VerdictNow());
  if (verdict.skipped) {
    return absl::OkStatus();
  }
  const absl::Cleanup over = [this] { state.window = {}; };
  for (const std::vector<UpdatePiece>& pieces : StepPieces()) {
    DT_ASSIGN_OR_RETURN(state.window, share_return->Begin(pieces));
    DT_RETURN_IF_ERROR(device_step->Update(state, reducer->reduced(), pieces));
    DT_RETURN_IF_ERROR(share_return->End());
  }
  return share_return->Flush();
}

// A step that is skipped changes nothing, and gathers nothing, on any rank: the verdict has the
// same bits on all.
absl::Status Engine::Impl::UpdateThroughHost(const StepPlan& plan) {
  DT_ASSIGN_OR_RETURN(const StepNumbers verdict, VerdictNow());
  if (verdict.skipped) {
    return absl::OkStatus();
  }
  UpdateStep step = plan.update;
  // As the device's own verdict has it (kernels/optimizer/step_verdict.h).
  step.gradient_scale = plan.to_mean * kernels::ClipFactor(verdict.grad_norm, plan.norm_max);
  const ReducedGradient gradient = reducer->reduced();
  DT_RETURN_IF_ERROR(rule->Prepare(
      {job.group(), state, gradient, StepPieces(), step, stream.get(), exchange.get()}));
  return exchange->Run(
      StepChunks(), gradient, Changes::kValues,
      [&](const UpdatePiece& piece, const PieceMemory& memory) {
        UpdatePieceBy(*rule, step, piece, memory);
      },
      [&](int bucket) {
        if (gather != nullptr) {
          gather->Start(bucket);
        }
      });
}

}  // namespace dtrain
