#include "runtime/engine/build/update_place.h"

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "runtime/job/job_state.h"

namespace dtrain {
namespace {

absl::Status NotOnDevice(absl::string_view what, absl::string_view instead) {
  return absl::UnimplementedError(absl::StrFormat(
      "%s is not supported on a GPU yet: %s, or set device to \"cpu\"", what, instead));
}

}  // namespace

OffloadOptions StateOffload(Job& job, const EngineState& state) {
  OffloadOptions offload = OptimizerOffload(job.config());
  const bool only_on_host = !job.state().device->is_host() && state.options.optimizer != nullptr;
  if (only_on_host && offload.device == OffloadOptions::Device::kNone) {
    offload.device = OffloadOptions::Device::kMemory;
  }
  return offload;
}

bool UpdatesOnHost(Job& job, const EngineState& state) {
  return !job.state().device->is_host() &&
         StateOffload(job, state).device != OffloadOptions::Device::kNone;
}

absl::Status CheckDevice(Job& job, const EngineState& state) {
  if (job.state().device->is_host()) {
    return absl::OkStatus();
  }
  const Config& config = job.config();
  switch (ParameterOffload(config).device) {
    case OffloadOptions::Device::kNone:
    case OffloadOptions::Device::kMemory:
      break;
    case OffloadOptions::Device::kFile:
      // These rules read weights of all buckets before the first bucket's turn.
      if (const auto kind = config.optimizer().kind;
          !UpdatesOnHost(job, state) &&
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

}  // namespace dtrain
