#include "runtime/engine/build/shard_layout.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "base/status.h"
#include "kernels/optimizer/grad_norm.h"
#include "runtime/device/device_range.h"
#include "runtime/job/job_state.h"
#include "runtime/plan/layout/bucket_plan.h"
#include "runtime/plan/layout/zero_policy.h"

namespace dtrain {
namespace {

plan::ShardOptions ShardOptionsOf(const Config& config, int world_size, int64_t granule = 1) {
  const bool blocks = plan::ZeroPolicy::Of(config).owns_whole_blocks;
  return {.world_size = world_size,
          .align_elements = blocks ? kernels::kNormBlock : plan::ParamLayout::kAlignElements,
          .bucket_multiple = granule};
}

// Elements of a GPU's memory that are mapped together, where buckets come and go.
absl::StatusOr<int64_t> GranuleOf(const Config& config, const Device& device, DType values) {
  if (device.is_host() || !plan::ZeroPolicy::Of(config).shards_weights) {
    return 1;
  }
  DT_ASSIGN_OR_RETURN(const size_t bytes, DeviceRange::Granule(device));
  return static_cast<int64_t>(bytes / DTypeBytes(values));
}

absl::StatusOr<plan::ShardOptions> OptionsOfShards(Job& job, const EngineState& state) {
  DT_ASSIGN_OR_RETURN(const int64_t granule,
                      GranuleOf(job.config(), *job.state().device, state.flat->dtype()));
  return ShardOptionsOf(job.config(), job.world_size(), granule);
}

absl::StatusOr<std::unique_ptr<plan::ShardPlan>> MakeShardPlan(
    Job& job, const EngineState& state, const plan::ParamLayout& layout,
    const std::vector<plan::FlatRange>& units, int64_t live_max) {
  DT_ASSIGN_OR_RETURN(plan::ShardOptions options, OptionsOfShards(job, state));
  options.buckets.bucket_elements = plan::BucketElements(job.config(), layout.total_elements());
  if (plan::ZeroPolicy::Of(job.config()).shards_weights) {
    options.units = units;
    options.unit_elements_max = std::max<int64_t>(1, live_max);
  }
  DT_ASSIGN_OR_RETURN(plan::ShardPlan shards, plan::ShardPlan::Create(layout, options));
  return std::make_unique<plan::ShardPlan>(std::move(shards));
}

}  // namespace

FlatOptions FlatOptionsOf(const Config& config, int world_size) {
  const plan::ZeroPolicy zero = plan::ZeroPolicy::Of(config);
  const bool cast_buffers = config.precision().cast_buffers;
  if (!zero.shards_states) {
    return {.cast_buffers = cast_buffers};
  }
  return {.pad_to_multiple = ShardOptionsOf(config, world_size).grain(),
          .with_gradients = !zero.shards_gradients,
          .values = zero.shards_weights ? ValueMemory::kReserved : ValueMemory::kSymmetric,
          .cast_buffers = cast_buffers};
}

absl::StatusOr<plan::LiveShares> SharesOfLive(Job& job, const EngineState& state,
                                              const LeafModules& leaf_modules) {
  DT_ASSIGN_OR_RETURN(const plan::ShardOptions options, OptionsOfShards(job, state));
  const plan::ParamLayout& training = state.flat->layout();
  const plan::ParamLayout* const frozen =
      state.frozen == nullptr ? nullptr : &state.frozen->flat->layout();
  plan::LiveShares shares = plan::ShareLive(
      job.config().gather_limits().live_max, options.padded(training.total_elements()),
      frozen == nullptr ? 0 : options.padded(frozen->total_elements()));
  const auto raise = [&](const plan::ParamLayout& layout, int64_t& share) {
    if (const int64_t leaf = plan::LargestLeaf(layout, leaf_modules); leaf > 0) {
      share = std::max(share, leaf + std::lcm(options.grain(), options.bucket_multiple));
    }
  };
  raise(training, shares.training);
  if (frozen != nullptr) {
    raise(*frozen, shares.frozen);
  }
  return shares;
}

absl::Status MakeShardPlans(Job& job, EngineState& state, const LeafModules& leaf_modules) {
  if (!plan::ZeroPolicy::Of(job.config()).shards_states) {
    return absl::OkStatus();
  }
  DT_ASSIGN_OR_RETURN(const plan::LiveShares live, SharesOfLive(job, state, leaf_modules));
  DT_ASSIGN_OR_RETURN(state.shards,
                      MakeShardPlan(job, state, state.flat->layout(), state.units, live.training));
  if (FrozenShards* const frozen = state.frozen.get(); frozen != nullptr) {
    DT_ASSIGN_OR_RETURN(frozen->shards, MakeShardPlan(job, state, frozen->flat->layout(),
                                                      frozen->units, live.frozen));
  }
  return absl::OkStatus();
}

}  // namespace dtrain
