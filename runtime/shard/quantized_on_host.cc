#include "runtime/shard/quantized_on_host.h"

#include <algorithm>

#include "base/check.h"
#include "base/status.h"
#include "runtime/gradients/packed_blocks.h"

namespace dtrain {

QuantizedOnHost::QuantizedOnHost(comm::Group& group, const plan::ShardPlan& shards, DType dtype)
    : group_(group), shards_(shards), dtype_(dtype), is_packed_(shards.buckets().size(), 0) {
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    slots_[slot] = std::make_unique_for_overwrite<std::byte[]>(
        static_cast<size_t>(PackedBytes(shards.largest_bucket())));
    free_.push_back(slot);
  }
}

absl::StatusOr<std::unique_ptr<QuantizedOnHost>> QuantizedOnHost::Create(
    comm::Group& group, const plan::ShardPlan& shards, DType dtype) {
  auto gather = std::unique_ptr<QuantizedOnHost>(new QuantizedOnHost(group, shards, dtype));
  DT_ASSIGN_OR_RETURN(
      gather->packed_,
      comm::SymmetricBuffer::Create(static_cast<size_t>(PackedBytes(shards.shard_elements())),
                                    "dtrain-packed"));
  DT_ASSIGN_OR_RETURN(gather->registration_, group.Register(gather->packed_));
  return gather;
}

void QuantizedOnHost::Invalidate() {
  DT_CHECK(started_.empty()) << "the gather of bucket " << oldest() << " is under way";
  std::fill(is_packed_.begin(), is_packed_.end(), uint8_t{0});
}

std::byte* QuantizedOnHost::PackedPart(int bucket) const {
  return static_cast<std::byte*>(packed_->data()) +
         PackedBytes(shards_.part(bucket, group_.rank()).local);
}

absl::StatusOr<comm::Work> QuantizedOnHost::Start(int bucket, const std::byte* share,
                                                  kernels::MutableFlat whole,
                                                  const std::string& name) {
  DT_CHECK(!full());
  const int64_t elements = shards_.part(bucket, group_.rank()).flat.elements();
  if (uint8_t& packed = is_packed_[static_cast<size_t>(bucket)]; packed == 0) {
    PackInt8({share, dtype_}, elements, PackedPart(bucket));
    packed = 1;
  }
  const auto bytes = static_cast<size_t>(PackedBytes(elements));
  const size_t slot = free_.back();
  DT_ASSIGN_OR_RETURN(
      comm::Work work,
      group_.AllGather(
          {PackedPart(bucket), bytes, DType::kUInt8, {}},
          {slots_[slot].get(), bytes * static_cast<size_t>(group_.size()), DType::kUInt8, {}},
          {.name = name}));
  free_.pop_back();
  started_.push_back({bucket, slot, whole});
  return work;
}

void QuantizedOnHost::Finish(int bucket) {
  const auto found = std::find_if(started_.begin(), started_.end(),
                                  [bucket](const Started& s) { return s.bucket == bucket; });
  if (found == started_.end()) {
    return;
  }
  const int64_t elements = shards_.buckets()[static_cast<size_t>(bucket)].elements();
  UnpackInt8(slots_[found->slot].get(), elements, found->whole);
  free_.push_back(found->slot);
  started_.erase(found);
}

int64_t QuantizedOnHost::bytes() const {
  return static_cast<int64_t>(packed_->bytes()) + kSlots * PackedBytes(shards_.largest_bucket());
}

}  // namespace dtrain
