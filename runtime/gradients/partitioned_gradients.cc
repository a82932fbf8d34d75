#include "runtime/gradients/partitioned_gradients.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ATen/Functions.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "kernels/flat.h"
#include "runtime/gradients/packed_blocks.h"
#include "runtime/gradients/shard_sums.h"
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
      queue_(shards.spans(), std::move(order)),
      slot_of_(shards.buckets().size(), nullptr),
      used_(flat.parameters().size(), 0),
      has_part_(shards.buckets().size(), 0),
      shard_(at::zeros({shards.shard_elements()}, at::TensorOptions(at::kFloat))) {}

PartitionedGradients::~PartitionedGradients() {
  hooks_.reset();
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
  sync->hooks_ = std::make_unique<GradientHooks>(flat, *sync);
  return sync;
}

void PartitionedGradients::BeginMicroBatch(int64_t /*step*/, bool /*last*/) {
  in_step_ = true;
  queue_.Arm();
}

void PartitionedGradients::OnGradient(size_t index) {
  if (!in_step_) {
    return;
  }
  at::Tensor& gradient = flat_.parameters()[index].mutable_grad();
  if (const absl::Status dense = CheckDense(flat_, index, gradient); !dense.ok()) {
    status_.Update(dense);
    return;
  }
  if (const absl::Status once = CheckNotLaunched(flat_, index, queue_); !once.ok()) {
    status_.Update(once);
    return;
  }
  const at::Tensor dense = gradient.to(at::kFloat).contiguous();
  Stage(index, dense.const_data_ptr<float>(), queue_.is_ready(index) ? Fill::kAdd : Fill::kCopy);
  used_[index] = 1;
  gradient.reset();
  queue_.Ready(index, [this](int bucket) { Launch(bucket); });
}

void PartitionedGradients::Stage(size_t index, const float* gradient, Fill fill) {
  const plan::LayoutEntry& entry = flat_.layout().entries()[index];
  const plan::FlatRange whole{entry.offset, entry.offset + entry.elements};
  const plan::BucketSpan span = shards_.spans()[index];
  for (int bucket = span.first; bucket < span.last; ++bucket) {
    const plan::FlatRange range = shards_.buckets()[static_cast<size_t>(bucket)];
    const plan::FlatRange piece = plan::Intersect(whole, range);
    float* const to = SlotOf(bucket).data + (piece.begin - range.begin);
    const auto bytes = static_cast<size_t>(piece.elements()) * sizeof(float);
    switch (fill) {
      case Fill::kCopy:
        std::memcpy(to, gradient + (piece.begin - whole.begin), bytes);
        break;
      case Fill::kAdd:
        kernels::AccumulateCpu(piece.elements(), {gradient + (piece.begin - whole.begin)}, {to},
                               TorchParallelFor);
        break;
      case Fill::kZero:
        std::memset(to, 0, bytes);
        break;
    }
  }
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

void PartitionedGradients::Launch(int bucket) {
  if (!status_.ok()) {
    return;  // FinishBackward reports it; launching on would only hide it.
  }
  Slot& slot = SlotOf(bucket);
  auto work = options_.quantized ? StartPacked(bucket, slot) : Start(bucket, slot);
  if (!work.ok()) {
    status_ = work.status();
    return;
  }
  slot.work = *std::move(work);
  under_way_.push_back(&slot);
  slot_of_[static_cast<size_t>(bucket)] = nullptr;  // The next micro-batch fills another.
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
  status_.Update(slot.work.Wait());
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

void PartitionedGradients::StageMissing(size_t index) {
  if (queue_.is_ready(index)) {
    return;
  }
  if (flat_.parameters()[index].mutable_grad().defined()) {  // Left there before the step.
    OnGradient(index);
  } else {
    Stage(index, nullptr, Fill::kZero);
  }
}

void PartitionedGradients::EndUnit(size_t unit) {
  if (!in_step_ || !status_.ok()) {
    return;
  }
  for (const size_t index : queue_.unit(unit)) {
    StageMissing(index);
  }
  queue_.EndUnit(unit, [this](int bucket) { Launch(bucket); });
}

absl::Status PartitionedGradients::FinishBackward() {
  for (size_t i = 0; i < flat_.parameters().size() && status_.ok(); ++i) {
    StageMissing(i);
  }
  queue_.ReadyAll([this](int bucket) { Launch(bucket); });
  return status_;
}

absl::StatusOr<GradientSquares> PartitionedGradients::Wait() {
  CollectAll();
  DT_RETURN_IF_ERROR(status_);
  return GradientSquares{
      .sum = SquareSum(shard_.const_data_ptr<float>(), 0, shards_.shard_elements()),
      .of_shard = true};
}

void PartitionedGradients::Release() {
  in_step_ = false;
  CollectAll();
  for (Slot& slot : slots_) {  // Those that a failed backward left open.
    slot.bucket = -1;
  }
  std::fill(slot_of_.begin(), slot_of_.end(), nullptr);
  std::fill(used_.begin(), used_.end(), uint8_t{0});
  std::fill(has_part_.begin(), has_part_.end(), uint8_t{0});
  flat_.ClearGradients();
  status_ = absl::OkStatus();
}

absl::Status PartitionedGradients::UseReadinessOrder(const std::vector<int>& order,
                                                     const std::vector<int>& need) {
  DT_ASSIGN_OR_RETURN(std::vector<int> launch_order, shards_.LaunchOrder(order, need));
  queue_.UseOrder(std::move(launch_order));
  return absl::OkStatus();
}

}  // namespace dtrain
