// Gradients at ZeRO stage 1: accumulated whole, as at stage 0, and reduce-scattered by buckets
// during the step's last backward, in place: each rank ends with the sums of its shard. Buckets may
// travel compressed (comm/compression/bucket_reduction.h); all ranks then end with all of the sum.
//
// Also at stage 0 whose updates go on behind the step: there some buckets are reduced whole, and
// the others gathered behind the step (parameter_gather.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/compression/bucket_reduction.h"
#include "comm/group.h"
#include "runtime/gradients/gradient_sync.h"
#include "runtime/gradients/whole_gradients.h"
#include "runtime/model/flat_parameters.h"
#include "runtime/plan/layout/launch_queue.h"
#include "runtime/plan/layout/shard_plan.h"

namespace dtrain {

// Places in the order of launches, as parts of all elements: 0 is the first, 1 the end.
struct LaunchShare {
  double begin = 0;
  double end = 0;
};

class ShardedGradients final : public GradientSync {
 public:
  // Collective. REQUIRES: all outlive this object; `flat` has gradients of the plan's padded size.
  // Of buckets that begin in `whole` all ranks get the sums of everything.
  static absl::StatusOr<std::unique_ptr<ShardedGradients>> Create(
      comm::Group& group, FlatParameters& flat, const plan::ShardPlan& shards,
      const comm::CompressionOptions& compression, LaunchShare whole = {});
  ~ShardedGradients() override;

  void OnGradient(size_t index) override;
  void BeginMicroBatch(int64_t /*step*/, bool last) override;
  absl::Status FinishBackward() override;
  absl::StatusOr<GradientSquares> Wait() override;
  ReducedGradient reduced() const override {
    return {flat_.gradients().const_data_ptr<float>(), false};
  }
  std::vector<uint8_t> used() const override { return whole_.in_place(); }
  int64_t bytes() const override { return static_cast<int64_t>(flat_.gradients().nbytes()); }
  void Release() override;
  const absl::Status& status() const override { return status_; }
  // Every rank has the sums of all of the bucket, not of its part alone.
  bool is_whole(int bucket) const { return whole_buckets_[static_cast<size_t>(bucket)] != 0; }

 private:
  ShardedGradients(comm::Group& group, FlatParameters& flat, const plan::ShardPlan& shards,
                   const comm::CompressionOptions& compression, LaunchShare whole);
  absl::Status UseLaunchOrder(const std::vector<int>& readiness, const std::vector<int>& need);
  const plan::LaunchQueue& queue() const override { return queue_; }
  absl::Status UseReadinessOrder(const std::vector<int>& order,
                                 const std::vector<int>& need) override;
  void Launch(int bucket);
  absl::Status LaunchPlain(int bucket);
  absl::Status Drain();

  comm::Group& group_;
  FlatParameters& flat_;
  const plan::ShardPlan& shards_;
  const comm::Wire wire_;
  const LaunchShare whole_share_;
  std::vector<std::unique_ptr<comm::BucketReduction>> reductions_;  // By bucket; none: plain.
  std::vector<comm::BucketReduction*> compressed_;                  // Under way, in order.
  const std::vector<std::string> names_;                            // By bucket.
  const std::vector<plan::OwnedRange> own_;  // This rank's parts, without padding.
  WholeGradients whole_;
  std::unique_ptr<comm::Registration> registration_;
  std::unique_ptr<GradientHooks> hooks_;
  plan::LaunchQueue queue_{{}, {}};
  std::vector<uint8_t> whole_buckets_;
  std::vector<comm::Work> works_;  // Under way.
  int64_t step_ = 0;
  bool last_ = false;
  absl::Status status_;
};

}  // namespace dtrain
