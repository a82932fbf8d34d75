#include "runtime/gradients/partitioned_gradients.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ATen/Functions.h"
#include "base/status.h"
#include "kernels/flat.h"
#include "runtime/gradients/bucket_parts.h"
#include "runtime/gradients/packed_blocks.h"
#include "runtime/model/torch_pool.h"

namespace dtrain {
namespace {

constexpr int64_t kRegisteredSlots = 2;  // One fills while the other is reduced.

}  // namespace

PartitionedGradients::PartitionedGradients(comm::Group& group, FlatParameters& flat,
                                           const plan::ShardPlan& shards,
                                           PartitionedOptions options, std::vector<int> order)
    : group_(group),
      flat_(flat),
      shards_(shards),
      options_{.wire = options.wire, .quantized = options.quantized && group.size() > 1},
      names_(BucketNames("bucket", flat, shards)),
      slot_of_(shards.buckets().size(), nullptr),
      has_part_(shards.buckets().size(), 0),
      shard_(at::zeros({shards.shard_elements()}, at::TensorOptions(at::kFloat))),
      collector_(flat, shards, *this, [this](int bucket) { return Launch(bucket); }) {
  collector_.UseQueue(plan::LaunchQueue(shards.spans(), std::move(order)));
}

PartitionedGradients::~PartitionedGradients() {
  collector_.StopListening();
  CollectAll();
}

absl::StatusOr<std::unique_ptr<PartitionedGradients>> PartitionedGradients::Create(
    comm::Group& group, FlatParameters& flat, const plan::ShardPlan& shards,
    PartitionedOptions options) {
  DT_ASSIGN_OR_RETURN(std::vector<int> order, shards.LaunchOrder({}));
  auto sync = std::unique_ptr<PartitionedGradients>(
      new PartitionedGradients(group, flat, shards, options, std::move(order)));
  const auto bytes =
      static_cast<size_t>(kRegisteredSlots * shards.largest_bucket()) * sizeof(float);
  DT_ASSIGN_OR_RETURN(sync->memory_, comm::SymmetricBuffer::Create(bytes, "dtrain-buckets"));
  DT_ASSIGN_OR_RETURN(sync->registration_, group.Register(sync->memory_));
  for (int64_t i = 0; i < kRegisteredSlots; ++i) {
    sync->slots_.emplace_back().data =
        static_cast<float*>(sync->memory_->data()) + i * shards.largest_bucket();
  }
  sync->collector_.Listen();
  return sync;
}

absl::Status PartitionedGradients::Write(int bucket, int64_t at, int64_t elements,
                                         const at::Tensor& gradient, Fill fill) {
  float* const to = SlotOf(bucket).data + at;
  const auto bytes = static_cast<size_t>(elements) * sizeof(float);
  if (fill == Fill::kZero) {
    std::memset(to, 0, bytes);
    return absl::OkStatus();
  }
  const at::Tensor values = gradient.to(at::kFloat);
  const auto* const from = values.const_data_ptr<float>();
  if (fill == Fill::kAdd) {
    kernels::AccumulateCpu(elements, {from}, {to}, TorchParallelFor);
  } else {
    std::memcpy(to, from, bytes);
  }
  return absl::OkStatus();
}

PartitionedGradients::Slot& PartitionedGradients::SlotOf(int bucket) {
  Slot*& slot = slot_of_[static_cast<size_t>(bucket)];
  if (slot != nullptr) {
    return *slot;
  }
  const auto is_free = [](const Slot& candidate) { return candidate.bucket < 0; };
  auto found = std::find_if(slots_.begin(), slots_.end(), is_free);
  if (found == slots_.end() && !under_way_.empty()) {
    CollectOldest();
    found = std::find_if(slots_.begin(), slots_.end(), is_free);
  }
  if (found == slots_.end()) {
    Slot& more = slots_.emplace_back();
    more.owner = at::empty({shards_.largest_bucket()}, at::TensorOptions(at::kFloat));
    more.data = more.owner.mutable_data_ptr<float>();
    found = std::prev(slots_.end());
  }
  slot = &*found;
  slot->bucket = bucket;
  const int64_t begin = shards_.buckets()[static_cast<size_t>(bucket)].begin;
  for (const plan::FlatRange& gap : shards_.gaps()[static_cast<size_t>(bucket)]) {
    std::fill_n(slot->data + (gap.begin - begin), gap.elements(), 0.0F);
  }
  return *slot;
}

absl::Status PartitionedGradients::Launch(int bucket) {
  Slot& slot = SlotOf(bucket);
  DT_ASSIGN_OR_RETURN(slot.work,
                      options_.quantized ? StartPacked(bucket, slot) : Start(bucket, slot));
  under_way_.push_back(&slot);
  slot_of_[static_cast<size_t>(bucket)] = nullptr;  // The next micro-batch fills another.
  return absl::OkStatus();
}

absl::StatusOr<comm::Work> PartitionedGradients::Start(int bucket, Slot& slot) {
  const plan::FlatRange range = shards_.buckets()[static_cast<size_t>(bucket)];
  const plan::FlatRange own = shards_.part(bucket, group_.rank()).flat;
  return group_.ReduceScatter(Floats(slot.data, range.elements()),
                              Floats(slot.data + (own.begin - range.begin), own.elements()),
                              comm::ReduceOp::kSum,
                              {.name = names_[static_cast<size_t>(bucket)], .wire = options_.wire});
}

absl::StatusOr<comm::Work> PartitionedGradients::StartPacked(int bucket, Slot& slot) {
  const int64_t elements = shards_.buckets()[static_cast<size_t>(bucket)].elements();
  const auto bytes = static_cast<size_t>(PackedBytes(elements));
  slot.packed.resize(static_cast<size_t>(PackedBytes(shards_.largest_bucket())));
  PackInt8({slot.data}, elements, slot.packed.data());
  return group_.AllToAll({slot.packed.data(), bytes, DType::kUInt8, {}},
                         {slot.data, bytes, DType::kUInt8, {}},
                         {.name = names_[static_cast<size_t>(bucket)]});
}

void PartitionedGradients::Add(const Slot& slot) {
  const plan::FlatRange range = shards_.buckets()[static_cast<size_t>(slot.bucket)];
  const plan::OwnedRange own = shards_.part(slot.bucket, group_.rank());
  const kernels::ConstFlat from{slot.data + (own.flat.begin - range.begin)};
  const kernels::MutableFlat to{shard_.mutable_data_ptr<float>() + own.local};
  uint8_t& has_part = has_part_[static_cast<size_t>(slot.bucket)];
  if (options_.quantized) {
    SumInt8(reinterpret_cast<const std::byte*>(slot.data), group_.size(), own.flat.elements(),
            static_cast<float*>(to.data), has_part != 0);
  } else if (has_part != 0) {
    kernels::AccumulateCpu(own.flat.elements(), from, to, TorchParallelFor);
  } else {
    kernels::CopyCpu(own.flat.elements(), from, to, TorchParallelFor);
  }
  has_part = 1;
}

void PartitionedGradients::CollectOldest() {
  Slot& slot = *under_way_.front();
  under_way_.pop_front();
  collector_.Fail(slot.work.Wait());
  Add(slot);
  slot.bucket = -1;
  slot.work = comm::Work();
}

int64_t PartitionedGradients::bytes() const {
  const auto slots = static_cast<int64_t>(slots_.size());
  int64_t packed = 0;
  for (const Slot& slot : slots_) {
    packed += static_cast<int64_t>(slot.packed.size());
  }
  return packed + static_cast<int64_t>(sizeof(float)) *
                      (shards_.shard_elements() + slots * shards_.largest_bucket());
}

void PartitionedGradients::CollectAll() {
  while (!under_way_.empty()) {
    CollectOldest();
  }
}

absl::StatusOr<GradientSquares> PartitionedGradients::Wait() {
  CollectAll();
  DT_RETURN_IF_ERROR(collector_.status());
  return GradientSquares{
      .sum = SquareSum(shard_.const_data_ptr<float>(), 0, shards_.shard_elements()),
      .of_shard = true};
}

void PartitionedGradients::Release() {
  CollectAll();
  for (Slot& slot : slots_) {  // A failed backward may have left some open.
    slot.bucket = -1;
  }
  std::fill(slot_of_.begin(), slot_of_.end(), nullptr);
  std::fill(has_part_.begin(), has_part_.end(), uint8_t{0});
  collector_.Release();
}

absl::Status PartitionedGradients::UseReadinessOrder(const std::vector<int>& order) {
  DT_ASSIGN_OR_RETURN(std::vector<int> launch_order, shards_.LaunchOrder(order));
  collector_.queue().UseOrder(std::move(launch_order));
  return absl::OkStatus();
}

}  // namespace dtrain
