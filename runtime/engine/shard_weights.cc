// The weights that a rank keeps at ZeRO stage 3, and what gathers the others.
#include <memory>
#include <utility>

#include "base/status.h"
#include "runtime/engine/dtypes.h"
#include "runtime/engine/engine_impl.h"
#include "runtime/engine/tensor_over.h"
#include "runtime/job/job_state.h"
#include "runtime/offload/offload_options.h"

namespace dtrain {

absl::StatusOr<ShardMemory> Engine::Impl::MakeShard(int64_t elements) {
  const DType dtype = state.flat->dtype();
  const at::ScalarType type = FloatTypeOf(dtype);
  const OffloadOptions offload = ParameterOffload(job.config());
  ShardMemory shard;
  if (offload.device == OffloadOptions::Device::kNone) {
    const size_t bytes = static_cast<size_t>(elements) * DTypeBytes(dtype);
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
  std::unique_ptr<SecondaryShards> secondary;
  if (const int size = config.hpz_partition_size(); size > 1) {
    DT_ASSIGN_OR_RETURN(secondary, SecondaryShards::Create(job.group(), job.state().store, size,
                                                           *state.shards, state.flat->dtype()));
  }
  DT_ASSIGN_OR_RETURN(state.live,
                      LiveParameters::Create(job.group(), *state.flat, *state.shards, shard,
                                             config.gather_limits(), std::move(secondary)));
  return absl::OkStatus();
}

}  // namespace dtrain
