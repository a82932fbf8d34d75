#include "runtime/shard/secondary_shards.h"

#include <algorithm>
#include <cstring>

#include "base/status.h"

namespace dtrain {

absl::StatusOr<std::unique_ptr<SecondaryShards>> SecondaryShards::Create(
    comm::Group& world, comm::Store* store, int size, const plan::ShardPlan& shards, DType dtype) {
  auto secondary = std::unique_ptr<SecondaryShards>(new SecondaryShards(shards, dtype));
  DT_ASSIGN_OR_RETURN(secondary->group_,
                      comm::SplitHostGroup(world, store, world.rank() / size, world.rank()));
  const auto bytes = static_cast<size_t>(shards.padded_elements() / size) * DTypeBytes(dtype);
  DT_ASSIGN_OR_RETURN(secondary->memory_, comm::SymmetricBuffer::Create(bytes, "dtrain-secondary"));
  DT_ASSIGN_OR_RETURN(secondary->registration_, secondary->group_->Register(secondary->memory_));
  return secondary;
}

void SecondaryShards::Invalidate() { std::fill(has_.begin(), has_.end(), uint8_t{0}); }

comm::Buffer SecondaryShards::PartOf(int bucket) const {
  const plan::FlatRange range = shards_.buckets()[static_cast<size_t>(bucket)];
  const auto size = static_cast<int64_t>(group_->size());
  const size_t width = DTypeBytes(dtype_);
  return {
      static_cast<std::byte*>(memory_->data()) + static_cast<size_t>(range.begin / size) * width,
      static_cast<size_t>(range.elements() / size) * width,
      dtype_,
      {}};
}

void SecondaryShards::Keep(int bucket, const std::byte* whole) {
  const comm::Buffer part = PartOf(bucket);
  std::memcpy(part.data, whole + static_cast<size_t>(group_->rank()) * part.bytes, part.bytes);
  has_[static_cast<size_t>(bucket)] = 1;
}

absl::StatusOr<comm::Work> SecondaryShards::Gather(int bucket, comm::Buffer whole,
                                                   const std::string& name) {
  return group_->AllGather(PartOf(bucket), whole, {.name = name});
}

}  // namespace dtrain
