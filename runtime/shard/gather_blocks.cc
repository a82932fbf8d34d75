#include "runtime/shard/gather_blocks.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"
#include "runtime/plan/layout/block_sizes.h"
#include "runtime/plan/memory/offload_plan.h"

namespace dtrain {

GatherBlocks::GatherBlocks(const Device& device, comm::DeviceGroup& group, FlatParameters& flat,
                           const plan::ShardPlan& shards, const ShardMemory& shard,
                           const BlockLimits& limits)
    : device_(device),
      group_(group),
      flat_(flat),
      shards_(shards),
      shard_(shard),
      limits_(limits),
      places_(shards.buckets().size()) {}

absl::StatusOr<std::unique_ptr<GatherBlocks>> GatherBlocks::Create(
    const Device& device, comm::DeviceGroup& group, FlatParameters& flat,
    const plan::ShardPlan& shards, const ShardMemory& shard, const BlockLimits& limits) {
  auto memory =
      std::unique_ptr<GatherBlocks>(new GatherBlocks(device, group, flat, shards, shard, limits));
  DT_RETURN_IF_ERROR(memory->MakeBlocks());
  if (shard.data != nullptr && shard.device == nullptr && !shard.pinned) {
    DT_RETURN_IF_ERROR(memory->MakePassages());
  }
  if (shard.device != nullptr) {
    DT_ASSIGN_OR_RETURN(memory->registration_,
                        group.RegisterDevice(shard.device->data(), shard.device->bytes()));
  }
  return memory;
}

GatherBlocks::~GatherBlocks() {
  group_.JoinStream(device_.stream()).IgnoreError();  // Either may be at work on the blocks.
  device_.Synchronize().IgnoreError();
  if (shares_ != nullptr) {
    shares_->Synchronize().IgnoreError();
  }
}

size_t GatherBlocks::BytesOf(int64_t elements) const {
  const size_t bytes = static_cast<size_t>(elements) * DTypeBytes(flat_.dtype());
  return (bytes + granule_ - 1) / granule_ * granule_;
}

absl::Status GatherBlocks::MakeBlocks() {
  DT_ASSIGN_OR_RETURN(granule_, DeviceRange::Granule(device_));
  for (Place& place : places_) {
    DT_ASSIGN_OR_RETURN(place.gathered, DeviceEvent::Create(device_, /*timing=*/false));
    DT_ASSIGN_OR_RETURN(place.read, DeviceEvent::Create(device_, /*timing=*/false));
    DT_ASSIGN_OR_RETURN(place.free, DeviceEvent::Create(device_, /*timing=*/false));
    DT_ASSIGN_OR_RETURN(place.shared, DeviceEvent::Create(device_, /*timing=*/false));
  }
  for (const int64_t elements : plan::BlocksOf(shards_, limits_.live_max)) {
    DT_RETURN_IF_ERROR(MakeBlock(BytesOf(elements)));
    ++blocks_[BytesOf(elements)].kept;
  }
  return absl::OkStatus();
}

absl::Status GatherBlocks::MakeBlock(size_t bytes) {
  DT_ASSIGN_OR_RETURN(
      auto block,
      DeviceBlock::Create(device_, bytes, "gathered weights (stage3_max_live_parameters)"));
  spare_.push_back(std::move(block));
  ++blocks_[bytes].all;
  return absl::OkStatus();
}

absl::Status GatherBlocks::MakePassages() {
  const auto elements = static_cast<size_t>(shards_.largest_bucket() / group_.size());
  const size_t bytes = elements * DTypeBytes(flat_.dtype());
  passages_.resize(static_cast<size_t>(plan::kShareBuffers));
  for (Passage& passage : passages_) {
    DT_ASSIGN_OR_RETURN(passage.memory, PinnedMemory::Create(device_, bytes));
    DT_ASSIGN_OR_RETURN(passage.passed, DeviceEvent::Create(device_, /*timing=*/false));
  }
  DT_ASSIGN_OR_RETURN(shares_, DeviceStream::Create(device_));
  return absl::OkStatus();
}

// Takes the block of a discarded bucket, once the device has passed the last read of it.
absl::StatusOr<std::unique_ptr<DeviceBlock>> GatherBlocks::TakeDiscarded(int bucket) {
  Place& place = places_[static_cast<size_t>(bucket)];
  DT_CHECK(place.block != nullptr) << "bucket " << bucket;
  const int64_t start = Clock::Real().MonotonicNanos();
  DT_RETURN_IF_ERROR(place.read->Wait(Deadline::After(absl::Seconds(limits_.timeout_seconds))));
  waited_nanos_ += Clock::Real().MonotonicNanos() - start;
  Forget(bucket);
  return std::move(place.block);
}

void GatherBlocks::Forget(int bucket) {
  discarded_.erase(std::remove(discarded_.begin(), discarded_.end(), bucket), discarded_.end());
}

// Frees blocks beyond the limit, which one operation needed, as soon as nothing waits for them.
void GatherBlocks::GiveBack() {
  for (auto bucket = discarded_.begin(); bucket != discarded_.end();) {
    Place& place = places_[static_cast<size_t>(*bucket)];
    Count& count = blocks_[place.block->bytes()];
    if (count.all > count.kept && place.read->Done()) {
      place.block.reset();
      --count.all;
      bucket = discarded_.erase(bucket);
    } else {
      ++bucket;
    }
  }
}

absl::StatusOr<std::unique_ptr<DeviceBlock>> GatherBlocks::TakeBlock(size_t bytes) {
  size_t best = std::numeric_limits<size_t>::max();
  const auto is_better = [&](size_t size) { return size >= bytes && size < best; };
  auto spare = spare_.end();
  for (auto it = spare_.begin(); it != spare_.end(); ++it) {
    if (is_better((*it)->bytes())) {
      best = (*it)->bytes();
      spare = it;
    }
  }
  int discarded = -1;
  for (const int bucket : discarded_) {  // Among equal sizes the first was discarded longest ago.
    if (const size_t size = places_[static_cast<size_t>(bucket)].block->bytes(); is_better(size)) {
      best = size;
      discarded = bucket;
    }
  }
  if (discarded >= 0) {
    return TakeDiscarded(discarded);
  }
  if (spare == spare_.end()) {
    DT_RETURN_IF_ERROR(MakeBlock(bytes));  // One operation needs more than may be live.
    spare = std::prev(spare_.end());
  }
  std::unique_ptr<DeviceBlock> block = std::move(*spare);
  spare_.erase(spare);
  return block;
}

absl::Status GatherBlocks::Open(int bucket) {
  GiveBack();
  Place& place = places_[static_cast<size_t>(bucket)];
  if (place.block != nullptr) {  // Kept, or not taken by another since it was discarded.
    Forget(bucket);
    return absl::OkStatus();
  }
  const plan::FlatRange range = shards_.buckets()[static_cast<size_t>(bucket)];
  DT_ASSIGN_OR_RETURN(place.block, TakeBlock(BytesOf(range.elements())));
  return place.block->MapAt(At(range.begin), BytesOf(range.elements()));
}

std::byte* GatherBlocks::At(int64_t element) const {
  return flat_.value_bytes() + static_cast<size_t>(element) * DTypeBytes(flat_.dtype());
}

absl::StatusOr<const std::byte*> GatherBlocks::Share(int bucket) {
  const plan::OwnedRange own = shards_.part(bucket, group_.rank());
  const size_t width = DTypeBytes(flat_.dtype());
  const std::byte* const share = shard_.data + static_cast<size_t>(own.local) * width;
  if (shard_.device != nullptr) {
    return share;
  }
  // Behind what reads the place now; an all-gather may begin in its own output.
  const Place& place = places_[static_cast<size_t>(bucket)];
  DT_RETURN_IF_ERROR(place.free->Record());
  std::byte* const to = At(own.flat.begin);
  const absl::Span<const std::byte> bytes(share, static_cast<size_t>(own.flat.elements()) * width);
  DT_RETURN_IF_ERROR(shard_.pinned ? SharePinned(place, to, bytes)
                                   : ShareFromFile(place, to, bytes));
  return to;
}

absl::Status GatherBlocks::SharePinned(const Place& place, std::byte* to,
                                       absl::Span<const std::byte> share) {
  return group_.Then([this, free = place.free->handle(), to, share](comm::CudaStream* stream) {
    DT_RETURN_IF_ERROR(
        device_.Check(device_.api().StreamWaitEvent(stream, free), "cudaStreamWaitEvent"));
    return device_.Check(device_.api().CopyAsync(to, share.data(), share.size(), stream),
                         "cudaMemcpyAsync of offloaded weights");
  });
}

// The host reads the file here: the page cache has it, or the disk. It waits where all passages are
// on their way. Not on the group's stream, to which a staged group queues in its own time: when a
// passage is free must be known to this thread.
absl::Status GatherBlocks::ShareFromFile(const Place& place, std::byte* to,
                                         absl::Span<const std::byte> share) {
  const Passage& passage = passages_[passage_++ % passages_.size()];
  const int64_t start = Clock::Real().MonotonicNanos();
  DT_RETURN_IF_ERROR(passage.passed->Wait(Deadline::After(absl::Seconds(limits_.timeout_seconds))));
  std::memcpy(passage.memory->data(), share.data(), share.size());
  waited_nanos_ += Clock::Real().MonotonicNanos() - start;
  DT_RETURN_IF_ERROR(shares_->WaitFor(*place.free));
  DT_RETURN_IF_ERROR(shares_->Copy(to, passage.memory->data(), share.size()));
  DT_RETURN_IF_ERROR(shares_->Record(*passage.passed));
  DT_RETURN_IF_ERROR(shares_->Record(*place.shared));
  return group_.Then([this, shared = place.shared->handle()](comm::CudaStream* stream) {
    return device_.Check(device_.api().StreamWaitEvent(stream, shared), "cudaStreamWaitEvent");
  });
}

absl::Status GatherBlocks::Discard(int bucket) {
  GiveBack();
  discarded_.push_back(bucket);
  return places_[static_cast<size_t>(bucket)].read->Record();
}

absl::Status GatherBlocks::Started(int bucket, comm::DeviceGroup* by) {
  Place& place = places_[static_cast<size_t>(bucket)];
  place.by = by != nullptr ? by : &group_;
  return place.by->Then([this, event = place.gathered->handle()](comm::CudaStream* stream) {
    return device_.Check(device_.api().EventRecord(event, stream), "cudaEventRecord");
  });
}

absl::Status GatherBlocks::Arrive(int bucket, comm::Work /*work*/) {
  const Place& place = places_[static_cast<size_t>(bucket)];
  return place.by->Await(place.gathered->handle(), device_.stream());
}

int64_t GatherBlocks::bytes() const {
  int64_t bytes = 0;
  for (const auto& [size, count] : blocks_) {
    bytes += count.all * static_cast<int64_t>(size);
  }
  return bytes;
}

double GatherBlocks::TakeWaitedSeconds() {
  return static_cast<double>(std::exchange(waited_nanos_, 0)) * 1e-9;
}

}  // namespace dtrain
