#include "runtime/engine/build/weight_sharder.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/status.h"
#include "kernels/optimizer/grad_norm.h"
#include "runtime/job/job_state.h"
#include "runtime/memory/state_memory.h"
#include "runtime/memory/tensor_over.h"
#include "runtime/model/copy_shared.h"
#include "runtime/model/dtypes.h"
#include "runtime/offload/offload_options.h"
#include "runtime/plan/layout/persistent_plan.h"
#include "runtime/plan/layout/units.h"
#include "runtime/shard/gather_blocks.h"
#include "runtime/shard/gather_pages.h"
#include "runtime/shard/quantized_on_device.h"
#include "runtime/shard/quantized_on_host.h"

namespace dtrain {

const Device& WeightSharder::device() const { return *job_.state().device; }

absl::StatusOr<ShardMemory> WeightSharder::MakeShard(int64_t elements, at::Tensor& values) {
  const DType dtype = state_.flat->dtype();
  const at::ScalarType type = FloatTypeOf(dtype);
  const OffloadOptions offload = ParameterOffload(job_.config());
  ShardMemory shard;
  const size_t bytes = static_cast<size_t>(elements) * DTypeBytes(dtype);
  if (!device().is_host() && offload.device == OffloadOptions::Device::kMemory) {
    DT_ASSIGN_OR_RETURN(values, MakePinnedState(device(), elements, type, 0));
    shard.pinned = true;
  } else if (!device().is_host() && offload.device == OffloadOptions::Device::kNone) {
    DT_ASSIGN_OR_RETURN(shard.device, DeviceMemory::Create(device(), bytes, "this rank's weights"));
    values = TensorOver(shard.device, elements, type, device().tensors());
  } else if (offload.device == OffloadOptions::Device::kNone) {
    DT_ASSIGN_OR_RETURN(shard.symmetric, comm::SymmetricBuffer::Create(bytes, "dtrain-weights"));
    values = TensorOver(shard.symmetric, elements, type);
  } else {
    DT_ASSIGN_OR_RETURN(const FarState far, MakeFarState(offload, elements, type, 0));
    values = far.tensor();
  }
  shard.data = static_cast<std::byte*>(values.mutable_data_ptr());
  return shard;
}

absl::StatusOr<std::unique_ptr<LiveParameters>> WeightSharder::MakeLive(const LiveSet& set) {
  const Config& config = job_.config();
  const DType dtype = set.flat.dtype();
  comm::DeviceGroup* const device_group =
      device().is_host() ? nullptr : job_.state().device_group.get();
  const std::vector<plan::FlatRange> whole_units = plan::WholeUnits(set.shards, set.units);
  GatherWays ways;
  if (plan::PersistentPlan small = plan::MakePersistentPlan(
          set.flat.layout(), set.shards, job_.world_size(), set.persistence, whole_units);
      !small.empty()) {
    DT_ASSIGN_OR_RETURN(ways.persistent, PersistentParameters::Create(
                                             job_.group(), device_group, set.flat,
                                             {set.values, set.memory.pinned}, std::move(small)));
  }
  if (const int size = config.hpz_partition_size(); size > 1) {
    if (state_.small_group.group == nullptr) {
      DT_ASSIGN_OR_RETURN(state_.small_group, MakeSmallGroup({.world = job_.group(),
                                                              .device_world = device_group,
                                                              .store = job_.state().store,
                                                              .size = size}));
    }
    DT_ASSIGN_OR_RETURN(ways.secondary,
                        SecondaryShards::Create(state_.small_group, set.flat, set.shards));
  }
  if (config.quantized_weights() && device_group == nullptr) {
    DT_ASSIGN_OR_RETURN(ways.quantized, QuantizedOnHost::Create(job_.group(), set.shards, dtype));
  } else if (config.quantized_weights()) {
    DT_ASSIGN_OR_RETURN(ways.quantized,
                        QuantizedOnDevice::Create(device(), *device_group, set.shards, dtype));
  }
  GatherLimits limits = config.gather_limits();
  limits.live_max = set.live_max;
  if (limits.prefetch_max > 0 && !set.units.empty()) {  // The next unit, however large.
    limits.prefetch_max = std::max(limits.prefetch_max, set.shards.largest_bucket());
  }
  std::unique_ptr<GatherMemory> memory;
  if (device_group == nullptr) {
    DT_ASSIGN_OR_RETURN(memory,
                        GatherPages::Create(job_.group(), set.flat, set.shards, set.memory));
  } else {
    DT_ASSIGN_OR_RETURN(
        memory, GatherBlocks::Create(device(), *device_group, set.flat, set.shards, set.memory,
                                     {limits.live_max, config.comm_timeout_seconds()}));
  }
  comm::Group& group = device_group == nullptr ? job_.group() : *device_group;
  return LiveParameters::Create(group, set.flat, set.shards, limits, std::move(ways),
                                std::move(memory), whole_units);
}

absl::Status WeightSharder::GatherTrained(const ShardMemory& memory) {
  DT_ASSIGN_OR_RETURN(const plan::LiveShares shares, SharesOfLive(job_, state_, leaf_modules_));
  DT_ASSIGN_OR_RETURN(state_.live, MakeLive({.flat = *state_.flat,
                                             .shards = *state_.shards,
                                             .values = state_.shard_values,
                                             .memory = memory,
                                             .persistence = job_.config().persistence_limits(),
                                             .live_max = shares.training,
                                             .units = state_.units}));
  return absl::OkStatus();
}

absl::Status WeightSharder::ShareOutFrozen() {
  FrozenShards& frozen = *state_.frozen;
  frozen.owned = frozen.shards->owned(job_.rank());
  DT_ASSIGN_OR_RETURN(const ShardMemory memory,
                      MakeShard(frozen.shards->shard_elements(), frozen.values));
  DT_RETURN_IF_ERROR(frozen.flat->MoveIn(
      {.pad_to_multiple = frozen.shards->padded_elements(),
       .with_gradients = false,
       .values = ValueMemory::kReserved},
      [&frozen](const plan::LayoutEntry& entry, const at::Tensor& whole) {
        const plan::OwnedRange all{{entry.offset, entry.offset + entry.elements}, 0};
        CopyShared(whole, {all}, frozen.values, frozen.owned);
      }));
  // The limit of what may stay whole counts all parameters, frozen ones too.
  PersistenceLimits persistence = job_.config().persistence_limits();
  const std::vector<plan::FlatRange> units = plan::WholeUnits(*state_.shards, state_.units);
  for (const size_t entry : plan::PersistentEntries(state_.flat->layout(), persistence, units)) {
    persistence.model_max -= state_.flat->layout().entries()[entry].elements;
  }
  DT_ASSIGN_OR_RETURN(const plan::LiveShares shares, SharesOfLive(job_, state_, leaf_modules_));
  DT_ASSIGN_OR_RETURN(frozen.live, MakeLive({.flat = *frozen.flat,
                                             .shards = *frozen.shards,
                                             .values = frozen.values,
                                             .memory = memory,
                                             .persistence = persistence,
                                             .live_max = shares.frozen,
                                             .units = frozen.units}));
  frozen.flat->RememberVersions();
  return absl::OkStatus();
}

}  // namespace dtrain
