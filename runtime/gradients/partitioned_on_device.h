// Gradients at ZeRO stages 2 and 3 on a GPU: PartitionedGradients in stream operations. A fresh
// gradient is copied to its bucket's slot on the compute stream and dropped; a full bucket is
// reduce-scattered on the group's stream in every micro-batch and added to this rank's fp32 shard
// there. A slot is filled again when the device, not the host, has passed its last use: between two
// slots, filling and reducing overlap. With `quantized` the parts of a bucket travel as int8 blocks
// to those who own them, packed, exchanged, and summed in fp32 in rank order on the group's stream
// (ZeRO++'s qgZ): the bits of the host's PartitionedGradients, but where a NaN is CUDA's own
// (kernels/cuda/cuda_table.h).
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/nccl/device_group.h"
#include "runtime/gradients/device_gradient_sync.h"
#include "runtime/gradients/gradient_collector.h"
#include "runtime/model/flat_parameters.h"
#include "runtime/plan/layout/shard_plan.h"

namespace dtrain {

struct PartitionedOnDeviceOptions {
  comm::Wire wire = comm::Wire::kSameAsBuffer;
  // The sum of squares is a tree over blocks at the layout's offsets.
  bool deterministic = false;
  bool quantized = false;  // REQUIRES: parts of buckets are multiples of kAlignedRun elements.
};

class PartitionedOnDevice final : public DeviceGradientSync, private BucketSlots {
 public:
  // Collective. REQUIRES: all outlive this object.
  static absl::StatusOr<std::unique_ptr<PartitionedOnDevice>> Create(
      const Device& device, comm::DeviceGroup& group, FlatParameters& flat,
      const plan::ShardPlan& shards, const PartitionedOnDeviceOptions& options);
  ~PartitionedOnDevice() override;

  void BeginMicroBatch(int64_t /*step*/, bool /*last*/) override { collector_.Begin(); }
  absl::Status FinishBackward() override { return collector_.Finish(); }
  void UseUnits(std::vector<std::vector<size_t>> units) override {
    collector_.queue().UseUnits(std::move(units));
  }
  void EndUnit(size_t unit) override { collector_.EndUnit(unit); }
  absl::Status QueueSquares(double* sum) override;
  const DeviceSquares& squares() const override { return *squares_; }
  ReducedGradient reduced() const override { return {shard(), true}; }
  std::vector<uint8_t> used() const override { return collector_.used(); }
  int64_t bytes() const override;
  void Release() override;
  const absl::Status& status() const override { return collector_.status(); }

 private:
  struct Slot {
    std::shared_ptr<DeviceMemory> memory;
    at::Tensor values;  // [largest bucket] fp32 over it.
    std::unique_ptr<comm::Registration> registration;
    std::unique_ptr<DeviceEvent> full;  // The compute stream has filled it.
    std::unique_ptr<DeviceEvent> free;  // The group's stream is done with it.
    bool used = false;                  // `free` was recorded.
  };
  PartitionedOnDevice(const Device& device, comm::DeviceGroup& group, FlatParameters& flat,
                      const plan::ShardPlan& shards, const PartitionedOnDeviceOptions& options,
                      std::vector<int> order);
  absl::Status MakeMemory();
  absl::StatusOr<Slot*> MakeSlot();
  const plan::LaunchQueue& queue() const override { return collector_.queue(); }
  absl::Status UseReadinessOrder(const std::vector<int>& order) override;
  float* shard() const { return static_cast<float*>(shard_->data()); }
  absl::Status Write(int bucket, int64_t at, int64_t elements, const at::Tensor& gradient,
                     Fill fill) override;
  // The slot that the bucket fills: on first use one that is free, or soon will be, on the device.
  absl::StatusOr<Slot*> SlotOf(int bucket);
  absl::Status Reduce(int bucket);
  // Each starts the sum over ranks of the bucket in `slot`, and gives where on the group's stream
  // this rank's part of it comes to be.
  absl::StatusOr<float*> Start(int bucket, Slot& slot);
  absl::StatusOr<float*> StartPacked(int bucket, Slot& slot);
  absl::Status QueuePack(const Slot& slot, int64_t part, comm::CudaStream* stream) const;
  absl::Status QueueSum(const Slot& slot, int64_t part, float* sum, comm::CudaStream* stream) const;
  comm::Buffer BufferOf(void* data, size_t bytes, DType dtype) const {
    return {data, bytes, dtype, device_.place()};
  }

  const Device& device_;
  comm::DeviceGroup& group_;
  FlatParameters& flat_;
  const plan::ShardPlan& shards_;
  const PartitionedOnDeviceOptions options_;  // A single rank does not quantize.
  const std::vector<std::string> names_;      // By bucket.
  std::list<Slot> slots_;
  std::deque<Slot*> idle_;         // Filled by nobody; the one launched longest ago first.
  std::vector<Slot*> slot_of_;     // By bucket; null: none.
  std::vector<uint8_t> has_part_;  // By bucket: the shard holds this step's sums so far.
  std::shared_ptr<DeviceMemory> shard_;
  // Quantized: what is sent of the bucket under way; what is received overwrites its slot.
  std::shared_ptr<DeviceMemory> packed_;
  std::unique_ptr<comm::Registration> packed_registration_;
  std::unique_ptr<DeviceSquares> squares_;
  bool under_way_ = false;
  SlotCollector collector_;
};

}  // namespace dtrain
