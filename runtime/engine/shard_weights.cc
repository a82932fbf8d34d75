// The weights that a rank keeps at ZeRO stage 3, and what gathers the others.
#include <algorithm>
#include <memory>
#include <utility>

#include "base/status.h"
#include "runtime/engine/dtypes.h"
#include "runtime/engine/engine_impl.h"
#include "runtime/engine/state_memory.h"
#include "runtime/engine/tensor_over.h"
#include "runtime/job/job_state.h"
#include "runtime/offload/offload_options.h"
#include "runtime/plan/persistent_plan.h"
#include "runtime/shard/gather_blocks.h"
#include "runtime/shard/gather_pages.h"
#include "runtime/shard/quantized_on_device.h"
#include "runtime/shard/quantized_on_host.h"

namespace dtrain {

absl::StatusOr<ShardMemory> Engine::Impl::MakeShard(int64_t elements) {
  const DType dtype = state.flat->dtype();
  const at::ScalarType type = FloatTypeOf(dtype);
  const OffloadOptions offload = ParameterOffload(job.config());
  ShardMemory shard;
  const size_t bytes = static_cast<size_t>(elements) * DTypeBytes(dtype);
  if (!device().is_host() && offload.device == OffloadOptions::Device::kMemory) {
    DT_ASSIGN_OR_RETURN(state.shard_values, MakePinnedState(device(), elements, type, 0));
    shard.pinned = true;
  } else if (!device().is_host() && offload.device == OffloadOptions::Device::kNone) {
    DT_ASSIGN_OR_RETURN(shard.device, DeviceMemory::Create(device(), bytes, "this rank's weights"));
    state.shard_values = TensorOver(shard.device, elements, type, device().tensors());
  } else if (offload.device == OffloadOptions::Device::kNone) {
    DT_ASSIGN_OR_RETURN(shard.symmetric, comm::SymmetricBuffer::Create(bytes, "dtrain-weights"));
    state.shard_values = TensorOver(shard.symmetric, elements, type);
  } else {
    DT_ASSIGN_OR_RETURN(const FarState far, MakeFarState(offload, elements, type, 0));
    state.shard_values = far.tensor();
  }
  shard.data = static_cast<std::byte*>(state.shard_values.mutable_data_ptr());
  return shard;
}

absl::Status Engine::Impl::CreateLive(const ShardMemory& shard) {
  const Config& config = job.config();
  const plan::ShardPlan& shards = *state.shards;
  const DType dtype = state.flat->dtype();
  comm::DeviceGroup* const device_group =
      device().is_host() ? nullptr : job.state().device_group.get();
  GatherWays ways;
  if (plan::PersistentPlan small = plan::MakePersistentPlan(
          state.flat->layout(), shards, job.world_size(), config.persistence_limits());
      !small.empty()) {
    DT_ASSIGN_OR_RETURN(ways.persistent, PersistentParameters::Create(
                                             job.group(), device_group, *state.flat,
                                             {state.shard_values, shard.pinned}, std::move(small)));
  }
  if (const int size = config.hpz_partition_size(); size > 1) {
    DT_ASSIGN_OR_RETURN(ways.secondary, SecondaryShards::Create({.world = job.group(),
                                                                 .device_world = device_group,
                                                                 .store = job.state().store,
                                                                 .size = size},
                                                                *state.flat, shards));
  }
  if (config.quantized_weights() && device_group == nullptr) {
    DT_ASSIGN_OR_RETURN(ways.quantized, QuantizedOnHost::Create(job.group(), shards, dtype));
  } else if (config.quantized_weights()) {
    DT_ASSIGN_OR_RETURN(ways.quantized,
                        QuantizedOnDevice::Create(device(), *device_group, shards, dtype));
  }
  GatherLimits limits = config.gather_limits();
  if (limits.prefetch_max > 0 && !state.units.empty()) {  // The next unit, however large.
    limits.prefetch_max = std::max(limits.prefetch_max, shards.largest_bucket());
  }
  std::unique_ptr<GatherMemory> memory;
  if (device_group == nullptr) {
    DT_ASSIGN_OR_RETURN(memory, GatherPages::Create(job.group(), *state.flat, shards, shard));
  } else {
    DT_ASSIGN_OR_RETURN(memory,
                        GatherBlocks::Create(device(), *device_group, *state.flat, shards, shard,
                                             {limits.live_max, config.comm_timeout_seconds()}));
  }
  comm::Group& group = device_group == nullptr ? job.group() : *device_group;
  DT_ASSIGN_OR_RETURN(state.live, LiveParameters::Create(group, *state.flat, shards, limits,
                                                         std::move(ways), std::move(memory)));
  return absl::OkStatus();
}

}  // namespace dtrain
