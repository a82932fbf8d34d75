#include "runtime/shard/secondary_shards.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status.h"

namespace dtrain {

absl::StatusOr<std::unique_ptr<SecondaryShards>> SecondaryShards::Create(
    const SecondaryGroups& groups, const FlatParameters& flat, const plan::ShardPlan& shards) {
  auto secondary = std::unique_ptr<SecondaryShards>(new SecondaryShards(flat, shards));
  secondary->bytes_ =
      static_cast<size_t>(shards.padded_elements() / groups.size) * DTypeBytes(flat.dtype());
  DT_RETURN_IF_ERROR(groups.device_world == nullptr ? secondary->MakeOnHost(groups)
                                                    : secondary->MakeOnDevice(groups));
  return secondary;
}

absl::Status SecondaryShards::MakeOnHost(const SecondaryGroups& groups) {
  const int rank = groups.world.rank();
  DT_ASSIGN_OR_RETURN(group_,
                      comm::SplitHostGroup(groups.world, groups.store, rank / groups.size, rank));
  DT_ASSIGN_OR_RETURN(memory_.symmetric, comm::SymmetricBuffer::Create(bytes_, "dtrain-secondary"));
  memory_.data = static_cast<std::byte*>(memory_.symmetric->data());
  DT_ASSIGN_OR_RETURN(registration_, group_->Register(memory_.symmetric));
  return absl::OkStatus();
}

absl::Status SecondaryShards::MakeOnDevice(const SecondaryGroups& groups) {
  const int rank = groups.device_world->rank();
  DT_ASSIGN_OR_RETURN(auto group, groups.device_world->SplitGroup(groups.store, rank / groups.size,
                                                                  rank, groups.name));
  device_group_ = group.get();
  group_ = std::move(group);
  DT_ASSIGN_OR_RETURN(memory_.device, DeviceMemory::Create(device_, bytes_,
                                                           "weights shared out in small groups "
                                                           "(zero_hpz_partition_size)"));
  memory_.data = static_cast<std::byte*>(memory_.device->data());
  DT_ASSIGN_OR_RETURN(registration_, device_group_->RegisterDevice(memory_.data, bytes_));
  return absl::OkStatus();
}

void SecondaryShards::Invalidate() { std::fill(has_.begin(), has_.end(), uint8_t{0}); }

comm::Buffer SecondaryShards::PartOf(int bucket) const {
  const plan::FlatRange range = shards_.buckets()[static_cast<size_t>(bucket)];
  const auto size = static_cast<int64_t>(group_->size());
  const size_t width = DTypeBytes(dtype_);
  return {memory_.data + static_cast<size_t>(range.begin / size) * width,
          static_cast<size_t>(range.elements() / size) * width, dtype_, device_.place()};
}

absl::Status SecondaryShards::Keep(int bucket, const std::byte* whole) {
  const comm::Buffer part = PartOf(bucket);
  const std::byte* const from = whole + static_cast<size_t>(group_->rank()) * part.bytes;
  has_[static_cast<size_t>(bucket)] = 1;
  if (device_group_ != nullptr) {
    return device_.Copy(part.data, from, part.bytes);
  }
  std::memcpy(part.data, from, part.bytes);
  return absl::OkStatus();
}

absl::StatusOr<comm::Work> SecondaryShards::Gather(int bucket, comm::Buffer whole,
                                                   const std::string& name) {
  return group_->AllGather(PartOf(bucket), whole, {.name = name});
}

void SecondaryShards::Drain() {
  if (device_group_ != nullptr) {
    device_group_->JoinStream(device_.stream()).IgnoreError();
    device_.Synchronize().IgnoreError();
  }
}

}  // namespace dtrain
