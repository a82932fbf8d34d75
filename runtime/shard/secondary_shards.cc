#include "runtime/shard/secondary_shards.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status.h"

namespace dtrain {

absl::StatusOr<SmallGroup> MakeSmallGroup(const SmallGroupOptions& options) {
  SmallGroup small;
  const int rank = options.world.rank();
  const int color = rank / options.size;
  if (options.device_world == nullptr) {
    DT_ASSIGN_OR_RETURN(small.group,
                        comm::SplitHostGroup(options.world, options.store, color, rank));
    return small;
  }
  DT_ASSIGN_OR_RETURN(
      auto group, options.device_world->SplitGroup(options.store, color, rank, "secondary shards"));
  small.device = group.get();
  small.group = std::move(group);
  return small;
}

absl::StatusOr<std::unique_ptr<SecondaryShards>> SecondaryShards::Create(
    const SmallGroup& small, const FlatParameters& flat, const plan::ShardPlan& shards) {
  auto secondary = std::unique_ptr<SecondaryShards>(new SecondaryShards(small, flat, shards));
  DT_RETURN_IF_ERROR(secondary->MakeMemory());
  return secondary;
}

absl::Status SecondaryShards::MakeMemory() {
  bytes_ =
      static_cast<size_t>(shards_.padded_elements() / small_.group->size()) * DTypeBytes(dtype_);
  if (small_.device == nullptr) {
    DT_ASSIGN_OR_RETURN(memory_.symmetric,
                        comm::SymmetricBuffer::Create(bytes_, "dtrain-secondary"));
    memory_.data = static_cast<std::byte*>(memory_.symmetric->data());
    DT_ASSIGN_OR_RETURN(registration_, small_.group->Register(memory_.symmetric));
    return absl::OkStatus();
  }
  DT_ASSIGN_OR_RETURN(memory_.device, DeviceMemory::Create(device_, bytes_,
                                                           "weights shared out in small groups "
                                                           "(zero_hpz_partition_size)"));
  memory_.data = static_cast<std::byte*>(memory_.device->data());
  DT_ASSIGN_OR_RETURN(registration_, small_.device->RegisterDevice(memory_.data, bytes_));
  return absl::OkStatus();
}

void SecondaryShards::Invalidate() { std::fill(has_.begin(), has_.end(), uint8_t{0}); }

comm::Buffer SecondaryShards::PartOf(int bucket) const {
  const plan::FlatRange range = shards_.buckets()[static_cast<size_t>(bucket)];
  const auto size = static_cast<int64_t>(small_.group->size());
  const size_t width = DTypeBytes(dtype_);
  return {memory_.data + static_cast<size_t>(range.begin / size) * width,
          static_cast<size_t>(range.elements() / size) * width, dtype_, device_.place()};
}

absl::Status SecondaryShards::Keep(int bucket, const std::byte* whole) {
  const comm::Buffer part = PartOf(bucket);
  const std::byte* const from = whole + static_cast<size_t>(small_.group->rank()) * part.bytes;
  has_[static_cast<size_t>(bucket)] = 1;
  if (small_.device != nullptr) {
    return device_.Copy(part.data, from, part.bytes);
  }
  std::memcpy(part.data, from, part.bytes);
  return absl::OkStatus();
}

absl::StatusOr<comm::Work> SecondaryShards::Gather(int bucket, comm::Buffer whole,
                                                   const std::string& name) {
  return small_.group->AllGather(PartOf(bucket), whole, {.name = name});
}

void SecondaryShards::Drain() {
  if (small_.device != nullptr) {
    small_.device->JoinStream(device_.stream()).IgnoreError();
    device_.Synchronize().IgnoreError();
  }
}

}  // namespace dtrain
