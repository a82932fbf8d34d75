// Whether a training fits into the ranks' memory: before its model is made, and before the engine
// allocates what is large.
#include "runtime/engine/build/memory_check.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status.h"
#include "dtrain/construct.h"
#include "runtime/engine/build/update_place.h"
#include "runtime/job/job_state.h"
#include "runtime/memory/available_memory.h"
#include "runtime/model/construction_file.h"
#include "runtime/model/dtypes.h"
#include "runtime/plan/layout/block_sizes.h"
#include "runtime/plan/layout/zero_policy.h"
#include "runtime/plan/memory/memory_fit.h"

namespace dtrain {
namespace {

plan::MemoryRequest RequestOf(Job& job, plan::ModelShape model) {
  plan::MemoryRequest request;
  request.model = std::move(model);
  request.world_size = job.world_size();
  plan::ReadInto(job.config(), request);
  request.states_on_host = !job.state().device->is_host();
  if (!request.states_on_host && !request.offload_to_file) {
    request.offload_buffers = 0;  // A CPU rank's far buffer is memory too.
  }
  return request;
}

// Collective: of where the states live.
absl::StatusOr<double> StateMemory(Job& job) {
  const Device& device = *job.state().device;
  plan::RankMemory mine;
  if (device.is_host()) {
    mine = ReadRankMemory();
  } else {
    DT_ASSIGN_OR_RETURN(mine, ReadDeviceMemory(device));
  }
  return LeastAvailable(job.group(), mine);
}

// Bytes that a tensor of the module holds in the host's memory, which moving it gives up.
double HeldBytes(const at::Tensor& tensor) {
  const bool in_memory = tensor.is_cpu() && !IsInConstructionFile(tensor);
  return in_memory ? static_cast<double>(tensor.nbytes()) : 0;
}

// Bytes that a frozen parameter takes while the model trains, if it is not shared out. One that
// stays in a construction file is no memory.
double WholeBytes(const at::Tensor& frozen, const FlatParameters& flat) {
  const bool cast = flat.dtype() != DType::kFloat32 && frozen.is_floating_point();
  const int64_t width =
      cast ? static_cast<int64_t>(DTypeBytes(flat.dtype())) : frozen.element_size();
  const bool stays = flat.device().is_host() && width == frozen.element_size();
  return stays ? HeldBytes(frozen) : static_cast<double>(frozen.numel() * width);
}

// The frozen tensors that stage 3 shares out, or would, in the order of registration.
std::vector<at::Tensor> FrozenThatIsSharedOut(const EngineState& state) {
  std::vector<at::Tensor> all;
  if (state.frozen != nullptr) {
    const std::vector<at::Tensor>& parameters = state.frozen->flat->parameters();
    all.assign(parameters.rbegin(), parameters.rend());
  }
  for (const NamedTensor& frozen : state.flat->frozen()) {
    if (state.flat->CanBeSharedOut(frozen.tensor)) {
      all.push_back(frozen.tensor);
    }
  }
  return all;
}

// Bytes of a frozen parameter that the device's free memory lacks already: it stays, or its
// memory is given up.
double BytesOnGpu(const at::Tensor& frozen, const FlatParameters& flat) {
  return frozen.is_cuda() && frozen.device() == flat.device().tensors()
             ? static_cast<double>(frozen.nbytes())
             : 0;
}

// Counts what stage 3 will gather: the largest buckets, and on a GPU the blocks that hold them.
void CountGathers(const EngineState& state, const plan::LiveShares& live,
                  plan::MemoryRequest& request) {
  const auto blocks = [&](const plan::ShardPlan& shards, int64_t live_max) {
    if (state.flat->device().is_host()) {
      return int64_t{0};
    }
    const std::vector<int64_t> sizes = plan::BlocksOf(shards, live_max);
    return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  };
  request.bucket_elements = state.shards->largest_bucket();
  request.block_elements = blocks(*state.shards, live.training);
  if (state.frozen != nullptr) {
    request.frozen_bucket_elements = state.frozen->shards->largest_bucket();
    request.block_elements += blocks(*state.frozen->shards, live.frozen);
  }
}

}  // namespace

absl::Status CheckModelFits(Job& job, const Json& shape) {
  DT_ASSIGN_OR_RETURN(plan::ModelShape model, plan::ModelShapeFrom(shape));
  plan::MemoryRequest request = RequestOf(job, std::move(model));
  request.micro_batch = job.config().micro_batch();
  request.sequence_length = job.config().sequence_length();
  DT_ASSIGN_OR_RETURN(const double available, StateMemory(job));
  DT_RETURN_IF_ERROR(plan::CheckStatesFit(request, available));
  DT_ASSIGN_OR_RETURN(const double of_host, LeastAvailable(job.group(), ReadRankMemory()));
  DT_RETURN_IF_ERROR(plan::CheckOffloadFits(request, of_host));
  return plan::CheckCanBeMade(request, of_host);
}

// Collective: before anything large is allocated, whether the states fit on every rank.
absl::Status CheckMemory(Job& job, const EngineState& state, const LeafModules& leaf_modules) {
  DT_ASSIGN_OR_RETURN(const double available, StateMemory(job));
  const plan::ParamLayout& layout = state.flat->layout();
  plan::ModelShape model;
  model.parameters = static_cast<double>(layout.parameter_elements());
  for (const plan::LayoutEntry& entry : layout.entries()) {
    model.tensors.push_back({.elements = static_cast<double>(entry.elements)});
  }
  std::reverse(model.tensors.begin(), model.tensors.end());
  double held = 0;  // Host memory of the module's tensors, which is given up as they are moved.
  for (const at::Tensor& parameter : state.flat->parameters()) {
    model.largest_gradient =
        std::max(model.largest_gradient, static_cast<double>(parameter.numel()));
    held += HeldBytes(parameter);
  }
  double on_gpu = 0;  // Likewise.
  for (const at::Tensor& frozen : FrozenThatIsSharedOut(state)) {
    held += HeldBytes(frozen);
    on_gpu += BytesOnGpu(frozen, *state.flat);
    model.frozen.push_back({.elements = static_cast<double>(frozen.numel())});
  }
  int others = 0;
  for (const NamedTensor& frozen : state.flat->frozen()) {
    if (!state.flat->CanBeSharedOut(frozen.tensor)) {
      held += HeldBytes(frozen.tensor);
      on_gpu += BytesOnGpu(frozen.tensor, *state.flat);
      model.frozen_bytes += WholeBytes(frozen.tensor, *state.flat);
      ++others;
    }
  }
  const bool shards_weights = plan::ZeroPolicy::Of(job.config()).shards_weights;
  if (shards_weights && model.frozen_bytes > 0 && job.rank() == 0) {
    DT_LOG(Warning) << absl::StrFormat(
        "zero_optimization.stage 3 shares out weights of the training's type (%s): %d frozen "
        "parameters of others stay whole on every rank, %.0f bytes",
        DTypeName(state.flat->dtype()), others, model.frozen_bytes);
  }
  plan::MemoryRequest request = RequestOf(job, std::move(model));
  if (shards_weights) {
    DT_ASSIGN_OR_RETURN(const plan::LiveShares live, SharesOfLive(job, state, leaf_modules));
    request.live_elements = std::max(request.live_elements, live.training + live.frozen);
    CountGathers(state, live, request);
  }
  if (UpdatesOnHost(job, state) && request.offload_buffers == 0) {  // A program's own optimizer.
    request.offload_buffers = StateOffload(job, state).buffers;
  }
  if (job.state().device->is_host()) {
    return plan::CheckStatesFit(request, available + held);
  }
  DT_RETURN_IF_ERROR(plan::CheckStatesFit(request, available + on_gpu));
  DT_ASSIGN_OR_RETURN(const double of_host, LeastAvailable(job.group(), ReadRankMemory()));
  return plan::CheckOffloadFits(request, of_host + held);
}

}  // namespace dtrain
