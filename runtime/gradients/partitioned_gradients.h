// Gradients at ZeRO stages 2 and 3: no rank ever holds them whole.
//
// A fresh gradient is copied into the staging slot of its bucket and dropped; a full bucket is
// reduce-scattered at once, in every micro-batch, and the rank's part is added to its fp32 shard,
// after which the slot serves another bucket. With `quantized` the parts of a bucket travel as int8
// blocks to those who own them and are summed there in fp32, in rank order (ZeRO++'s qgZ). Two
// slots are registered with the group; when gradients come so far out of order that more buckets
// are open, more are allocated.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "comm/group.h"
#include "comm/symmetric_buffer.h"
#include "runtime/gradients/gradient_collector.h"
#include "runtime/gradients/gradient_sync.h"
#include "runtime/model/flat_parameters.h"
#include "runtime/plan/layout/shard_plan.h"

namespace dtrain {

struct PartitionedOptions {
  comm::Wire wire = comm::Wire::kSameAsBuffer;
  bool quantized = false;  // REQUIRES: parts of buckets are multiples of kPackedChunk elements.
};

class PartitionedGradients final : public GradientSync, private BucketSlots {
 public:
  // Collective. REQUIRES: all outlive this object.
  static absl::StatusOr<std::unique_ptr<PartitionedGradients>> Create(comm::Group& group,
                                                                      FlatParameters& flat,
                                                                      const plan::ShardPlan& shards,
                                                                      PartitionedOptions options);
  ~PartitionedGradients() override;

  void BeginMicroBatch(int64_t /*step*/, bool /*last*/) override { collector_.Begin(); }
  absl::Status FinishBackward() override { return collector_.Finish(); }
  void UseUnits(std::vector<std::vector<size_t>> units) override {
    collector_.queue().UseUnits(std::move(units));
  }
  void EndUnit(size_t unit) override { collector_.EndUnit(unit); }
  absl::StatusOr<GradientSquares> Wait() override;
  ReducedGradient reduced() const override { return {shard_.const_data_ptr<float>(), true}; }
  std::vector<uint8_t> used() const override { return collector_.used(); }
  int64_t bytes() const override;
  void Release() override;
  const absl::Status& status() const override { return collector_.status(); }

 private:
  struct Slot {
    float* data = nullptr;
    at::Tensor owner;               // Owns the memory of a slot that is not registered.
    std::vector<std::byte> packed;  // Quantized: what is sent; what is received overwrites data.
    int bucket = -1;                // -1: free.
    comm::Work work;
  };
  PartitionedGradients(comm::Group& group, FlatParameters& flat, const plan::ShardPlan& shards,
                       PartitionedOptions options, std::vector<int> order);
  const plan::LaunchQueue& queue() const override { return collector_.queue(); }
  absl::Status UseReadinessOrder(const std::vector<int>& order) override;
  absl::Status Write(int bucket, int64_t at, int64_t elements, const at::Tensor& gradient,
                     Fill fill) override;
  Slot& SlotOf(int bucket);
  absl::Status Launch(int bucket);
  absl::StatusOr<comm::Work> Start(int bucket, Slot& slot);
  absl::StatusOr<comm::Work> StartPacked(int bucket, Slot& slot);
  // Adds this rank's part of a bucket, reduced, to the shard.
  void Add(const Slot& slot);
  // Waits for the oldest reduction under way and adds its part to the shard.
  void CollectOldest();
  void CollectAll();

  comm::Group& group_;
  FlatParameters& flat_;
  const plan::ShardPlan& shards_;
  const PartitionedOptions options_;      // A single rank does not quantize.
  const std::vector<std::string> names_;  // By bucket.
  std::shared_ptr<comm::SymmetricBuffer> memory_;
  std::unique_ptr<comm::Registration> registration_;
  std::deque<Slot> slots_;         // Never moved.
  std::vector<Slot*> slot_of_;     // By bucket that is being filled; else null.
  std::deque<Slot*> under_way_;    // In launch order.
  std::vector<uint8_t> has_part_;  // By bucket: the shard holds a part of this step's gradient.
  at::Tensor shard_;               // [shard elements] fp32.
  SlotCollector collector_;
};

}  // namespace dtrain
