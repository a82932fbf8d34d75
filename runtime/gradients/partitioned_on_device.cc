#include "runtime/gradients/partitioned_on_device.h"

#include <algorithm>
#include <utility>

#include "ATen/Functions.h"
#include "base/status.h"
#include "kernels/cuda/cuda_table.h"
#include "kernels/optimizer/grad_norm.h"
#include "runtime/gradients/bucket_parts.h"
#include "runtime/gradients/packed_on_device.h"
#include "runtime/memory/tensor_over.h"

namespace dtrain {
namespace {

constexpr int kSlots = 2;  // One fills while the other is reduced.

}  // namespace

PartitionedOnDevice::PartitionedOnDevice(const Device& device, comm::DeviceGroup& group,
                                         FlatParameters& flat, const plan::ShardPlan& shards,
                                         const PartitionedOnDeviceOptions& options,
                                         std::vector<int> order)
    : device_(device),
      group_(group),
      flat_(flat),
      shards_(shards),
      options_{.wire = options.wire,
               .deterministic = options.deterministic,
               .quantized = options.quantized && group.size() > 1},
      names_(BucketNames("bucket", flat, shards)),
      slot_of_(shards.buckets().size(), nullptr),
      has_part_(shards.buckets().size(), 0),
      collector_(flat, shards, *this, [this](int bucket) { return Reduce(bucket); }) {
  collector_.UseQueue(plan::LaunchQueue(shards.spans(), std::move(order)));
}

PartitionedOnDevice::~PartitionedOnDevice() {
  collector_.StopListening();
  if (under_way_) {  // The group's stream may still use this memory.
    group_.JoinStream(device_.stream()).IgnoreError();
    device_.Synchronize().IgnoreError();
  }
}

absl::StatusOr<std::unique_ptr<PartitionedOnDevice>> PartitionedOnDevice::Create(
    const Device& device, comm::DeviceGroup& group, FlatParameters& flat,
    const plan::ShardPlan& shards, const PartitionedOnDeviceOptions& options) {
  DT_ASSIGN_OR_RETURN(std::vector<int> order, shards.LaunchOrder({}));
  auto made = std::unique_ptr<PartitionedOnDevice>(
      new PartitionedOnDevice(device, group, flat, shards, options, std::move(order)));
  DT_RETURN_IF_ERROR(made->MakeMemory());
  made->collector_.Listen();
  return made;
}

absl::Status PartitionedOnDevice::MakeMemory() {
  const auto bytes = static_cast<size_t>(shards_.shard_elements()) * sizeof(float);
  DT_ASSIGN_OR_RETURN(shard_, DeviceMemory::Create(device_, bytes, "gradients"));
  for (int i = 0; i < kSlots; ++i) {
    DT_ASSIGN_OR_RETURN(Slot* const slot, MakeSlot());
    idle_.push_back(slot);
  }
  if (options_.quantized) {
    DT_ASSIGN_OR_RETURN(
        packed_, DeviceMemory::Create(device_, PackedRunBytes(shards_.largest_bucket()),
                                      "a gradient bucket in int8 (zero_quantized_gradients)"));
    DT_ASSIGN_OR_RETURN(packed_registration_,
                        group_.RegisterDevice(packed_->data(), packed_->bytes()));
  }
  std::vector<DeviceSquares::Run> runs;
  int64_t blocks = 0;
  for (const plan::OwnedRange& owned : shards_.owned(group_.rank())) {
    runs.push_back({shard() + owned.local, owned.flat.begin, owned.flat.elements()});
    blocks += kernels::NormBlocks(owned.flat.begin, owned.flat.elements());
  }
  const int64_t all = kernels::NormBlocks(0, flat_.layout().total_elements());
  DT_ASSIGN_OR_RETURN(squares_, DeviceSquares::Create(device_, group_, std::max(all, blocks)));
  if (options_.deterministic) {
    squares_->SetOrderedRuns(std::move(runs), all, /*shared_out=*/true);
  } else {
    squares_->SetRuns(std::move(runs), /*of_shard=*/true);
  }
  return absl::OkStatus();
}

absl::StatusOr<PartitionedOnDevice::Slot*> PartitionedOnDevice::MakeSlot() {
  Slot slot;
  const int64_t elements = shards_.largest_bucket();
  const auto bytes = static_cast<size_t>(elements) * sizeof(float);
  DT_ASSIGN_OR_RETURN(slot.memory, DeviceMemory::Create(device_, bytes, "a gradient bucket"));
  DT_ASSIGN_OR_RETURN(slot.full, DeviceEvent::Create(device_, /*timing=*/false));
  DT_ASSIGN_OR_RETURN(slot.free, DeviceEvent::Create(device_, /*timing=*/false));
  if (slots_.size() < kSlots) {  // Those made at the start: registering is collective.
    DT_ASSIGN_OR_RETURN(slot.registration, group_.RegisterDevice(slot.memory->data(), bytes));
  }
  slot.values = TensorOver(slot.memory, elements, at::kFloat, device_.tensors());
  slots_.push_back(std::move(slot));
  return &slots_.back();
}

absl::Status PartitionedOnDevice::Write(int bucket, int64_t at, int64_t elements,
                                        const at::Tensor& gradient, Fill fill) {
  DT_ASSIGN_OR_RETURN(const Slot* const slot, SlotOf(bucket));
  at::Tensor to = slot->values.narrow(0, at, elements);
  switch (fill) {
    case Fill::kCopy:
      to.copy_(gradient);
      break;
    case Fill::kAdd:
      to.add_(gradient);
      break;
    case Fill::kZero:
      to.zero_();
      break;
  }
  return absl::OkStatus();
}

absl::StatusOr<PartitionedOnDevice::Slot*> PartitionedOnDevice::SlotOf(int bucket) {
  Slot*& slot = slot_of_[static_cast<size_t>(bucket)];
  if (slot != nullptr) {
    return slot;
  }
  if (idle_.empty()) {  // More buckets fill at a time than there are slots.
    DT_ASSIGN_OR_RETURN(Slot* const more, MakeSlot());
    idle_.push_back(more);
  }
  slot = idle_.front();
  idle_.pop_front();
  if (slot->used) {
    DT_RETURN_IF_ERROR(group_.Await(slot->free->handle(), device_.stream()));
  }
  const int64_t begin = shards_.buckets()[static_cast<size_t>(bucket)].begin;
  for (const plan::FlatRange& gap : shards_.gaps()[static_cast<size_t>(bucket)]) {
    slot->values.narrow(0, gap.begin - begin, gap.elements()).zero_();
  }
  return slot;
}

absl::StatusOr<float*> PartitionedOnDevice::Start(int bucket, Slot& slot) {
  const plan::FlatRange range = shards_.buckets()[static_cast<size_t>(bucket)];
  const plan::FlatRange own = shards_.part(bucket, group_.rank()).flat;
  auto* const data = static_cast<float*>(slot.memory->data());
  float* const part = data + (own.begin - range.begin);
  const auto bytes = [](const plan::FlatRange& of) {
    return static_cast<size_t>(of.elements()) * sizeof(float);
  };
  DT_RETURN_IF_ERROR(
      group_
          .ReduceScatter(BufferOf(data, bytes(range), DType::kFloat32),
                         BufferOf(part, bytes(own), DType::kFloat32), comm::ReduceOp::kSum,
                         {.name = names_[static_cast<size_t>(bucket)], .wire = options_.wire})
          .status());
  return part;
}

// Each rank's part of a filled slot is a run of its own.
absl::Status PartitionedOnDevice::QueuePack(const Slot& slot, int64_t part,
                                            comm::CudaStream* stream) const {
  DT_RETURN_IF_ERROR(device_.Check(device_.api().StreamWaitEvent(stream, slot.full->handle()),
                                   "cudaStreamWaitEvent"));
  const auto* from = static_cast<const float*>(slot.memory->data());
  auto* to = static_cast<std::byte*>(packed_->data());
  for (int rank = 0; rank < group_.size(); ++rank) {
    DT_RETURN_IF_ERROR(
        QueuePackInt8(device_.kernels(), {from}, part, to, nullptr, Device::KernelStream(stream)));
    from += part;
    to += PackedRunBytes(part);
  }
  return absl::OkStatus();
}

// Queues the sum of what all ranks sent, in the order of the ranks.
absl::Status PartitionedOnDevice::QueueSum(const Slot& slot, int64_t part, float* sum,
                                           comm::CudaStream* stream) const {
  const auto* from = static_cast<const std::byte*>(slot.memory->data());
  for (int rank = 0; rank < group_.size(); ++rank) {
    DT_RETURN_IF_ERROR(QueueUnpackInt8(device_.kernels(), from, part, part, {sum},
                                       /*add=*/rank > 0, Device::KernelStream(stream)));
    from += PackedRunBytes(part);
  }
  return absl::OkStatus();
}

// The received blocks take a good quarter of the slot, so its last part, a half at most, is free
// for the sum.
absl::StatusOr<float*> PartitionedOnDevice::StartPacked(int bucket, Slot& slot) {
  const int64_t part = shards_.part(bucket, group_.rank()).flat.elements();
  const auto ranks = static_cast<size_t>(group_.size());
  auto* const data = static_cast<float*>(slot.memory->data());
  float* const sum = data + (group_.size() - 1) * part;
  DT_RETURN_IF_ERROR(slot.full->Record());
  DT_RETURN_IF_ERROR(group_.Then(
      [this, &slot, part](comm::CudaStream* stream) { return QueuePack(slot, part, stream); }));
  const size_t bytes = PackedRunBytes(part) * ranks;
  DT_RETURN_IF_ERROR(group_
                         .AllToAll(BufferOf(packed_->data(), bytes, DType::kUInt8),
                                   BufferOf(data, bytes, DType::kUInt8),
                                   {.name = names_[static_cast<size_t>(bucket)]})
                         .status());
  DT_RETURN_IF_ERROR(group_.Then([this, &slot, part, sum](comm::CudaStream* stream) {
    return QueueSum(slot, part, sum, stream);
  }));
  return sum;
}

absl::Status PartitionedOnDevice::Reduce(int bucket) {
  const auto place = static_cast<size_t>(bucket);
  DT_ASSIGN_OR_RETURN(Slot* const slot, SlotOf(bucket));
  const plan::OwnedRange own = shards_.part(bucket, group_.rank());
  under_way_ = true;
  DT_ASSIGN_OR_RETURN(const float* const part,
                      options_.quantized ? StartPacked(bucket, *slot) : Start(bucket, *slot));
  const bool add = has_part_[place] != 0;
  has_part_[place] = 1;
  DT_RETURN_IF_ERROR(group_.Then([this, add, part, own, slot](comm::CudaStream* stream) {
    const kernels::CudaKernelTable& kernels = device_.kernels();
    const absl::Status taken = (add ? kernels.accumulate : kernels.copy)(
        own.flat.elements(), {part}, {shard() + own.local}, Device::KernelStream(stream));
    return taken.ok() ? device_.Check(device_.api().EventRecord(slot->free->handle(), stream),
                                      "cudaEventRecord")
                      : taken;
  }));
  slot->used = true;
  idle_.push_back(slot);
  slot_of_[place] = nullptr;  // The next micro-batch fills another.
  return absl::OkStatus();
}

absl::Status PartitionedOnDevice::QueueSquares(double* sum) {
  DT_RETURN_IF_ERROR(collector_.status());
  for (size_t run = 0; run < shards_.owned(group_.rank()).size(); ++run) {
    DT_RETURN_IF_ERROR(squares_->QueueRun(run));
  }
  return squares_->Queue(sum);
}

int64_t PartitionedOnDevice::bytes() const {
  const auto slots = static_cast<int64_t>(slots_.size());
  return static_cast<int64_t>(sizeof(float)) *
             (shards_.shard_elements() + slots * shards_.largest_bucket()) +
         static_cast<int64_t>(packed_ != nullptr ? packed_->bytes() : 0) + squares_->bytes();
}

void PartitionedOnDevice::Release() {
  if (under_way_) {
    group_.JoinStream(device_.stream()).IgnoreError();
    under_way_ = false;
  }
  for (Slot*& slot : slot_of_) {  // A failed backward may have left some open.
    if (slot != nullptr) {
      idle_.push_back(std::exchange(slot, nullptr));
    }
  }
  std::fill(has_part_.begin(), has_part_.end(), uint8_t{0});
  collector_.Release();
}

absl::Status PartitionedOnDevice::UseReadinessOrder(const std::vector<int>& order) {
  DT_ASSIGN_OR_RETURN(std::vector<int> launch_order, shards_.LaunchOrder(order));
  collector_.queue().UseOrder(std::move(launch_order));
  return absl::OkStatus();
}

}  // namespace dtrain
