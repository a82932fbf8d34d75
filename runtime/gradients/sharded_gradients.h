// Gradients at ZeRO stage 1: accumulated whole, as at stage 0, and reduce-scattered by buckets
// during the step's last backward, in place: each rank ends with the sums of its shard. Buckets may
// travel compressed (comm/compression/bucket_reduction.h); all ranks then end with all of the sum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/compression/bucket_reduction.h"
#include "comm/group.h"
#include "runtime/gradients/gradient_collector.h"
#include "runtime/gradients/gradient_sync.h"
#include "runtime/model/flat_parameters.h"
#include "runtime/plan/layout/shard_plan.h"

namespace dtrain {

class ShardedGradients final : public GradientSync {
 public:
  // Collective. REQUIRES: all outlive this object; `flat` has gradients of the plan's padded size.
  static absl::StatusOr<std::unique_ptr<ShardedGradients>> Create(
      comm::Group& group, FlatParameters& flat, const plan::ShardPlan& shards,
      const comm::CompressionOptions& compression);
  ~ShardedGradients() override;

  void BeginMicroBatch(int64_t step, bool last) override;
  absl::Status FinishBackward() override { return collector_.Finish(); }
  absl::StatusOr<GradientSquares> Wait() override;
  ReducedGradient reduced() const override {
    return {flat_.gradients().const_data_ptr<float>(), false};
  }
  std::vector<uint8_t> used() const override { return collector_.used(); }
  int64_t bytes() const override { return static_cast<int64_t>(flat_.gradients().nbytes()); }
  void Release() override;
  const absl::Status& status() const override { return collector_.status(); }

 private:
  ShardedGradients(comm::Group& group, FlatParameters& flat, const plan::ShardPlan& shards,
                   const comm::CompressionOptions& compression);
  const plan::LaunchQueue& queue() const override { return collector_.queue(); }
  absl::Status UseReadinessOrder(const std::vector<int>& order) override;
  absl::Status Launch(int bucket);
  absl::Status LaunchPlain(int bucket);
  // Waits for all that is under way, after an error too: its memory stays in use until then.
  absl::Status Drain();

  comm::Group& group_;
  FlatParameters& flat_;
  const plan::ShardPlan& shards_;
  const comm::Wire wire_;
  std::vector<std::unique_ptr<comm::BucketReduction>> reductions_;  // By bucket; empty: all plain.
  std::vector<comm::BucketReduction*> compressed_;                  // Under way, in launch order.
  const std::vector<std::string> names_;                            // By bucket.
  const std::vector<plan::OwnedRange> own_;  // This rank's parts, without padding.
  std::unique_ptr<comm::Registration> registration_;
  std::vector<comm::Work> works_;  // Under way.
  WholeCollector collector_;
  int64_t step_ = 0;
};

}  // namespace dtrain
