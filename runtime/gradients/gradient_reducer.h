// Gradient buckets of ZeRO stage 0: filled by backward, all-reduced by the comm thread meanwhile.
//
// A bucket is a contiguous range of the flat gradient buffer, where gradients accumulate. During
// the last micro-batch a full bucket is launched as soon as those before it are, so that every rank
// launches in the same order.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/compression/bucket_reduction.h"
#include "comm/group.h"
#include "runtime/gradients/bucket_tuner.h"
#include "runtime/gradients/gradient_collector.h"
#include "runtime/gradients/gradient_sync.h"
#include "runtime/model/flat_parameters.h"
#include "runtime/plan/layout/bucket_plan.h"

namespace dtrain {

struct ReducerOptions {
  int64_t bucket_elements = 0;
  // Up to here the first steps may change them (bucket_tuner.h); 0: they stay.
  int64_t bucket_elements_max = 0;
  comm::CompressionOptions compression = {};  // comm.wire_dtype and comm.compression.
};

class GradientReducer final : public GradientSync {
 public:
  // Installs the hooks. REQUIRES: `group` and `flat` outlive this object.
  static absl::StatusOr<std::unique_ptr<GradientReducer>> Create(comm::Group& group,
                                                                 FlatParameters& flat,
                                                                 ReducerOptions options);
  ~GradientReducer() override;

  void BeginMicroBatch(int64_t step, bool last) override;
  // After the last: zeroes what no gradient reached and launches the rest.
  absl::Status FinishBackward() override;
  absl::StatusOr<GradientSquares> Wait() override;
  ReducedGradient reduced() const override {
    return {flat_.gradients().const_data_ptr<float>(), false};
  }
  std::vector<uint8_t> used() const override { return collector_.used(); }
  int64_t bytes() const override { return static_cast<int64_t>(flat_.gradients().nbytes()); }
  void Release() override;
  const absl::Status& status() const override { return collector_.status(); }

 private:
  struct BucketState {
    plan::Bucket bucket;
    std::unique_ptr<comm::BucketReduction> reduction;
    bool launched = false;
  };

  GradientReducer(comm::Group& group, FlatParameters& flat, ReducerOptions options);
  const plan::LaunchQueue& queue() const override { return collector_.queue(); }
  // Bucket boundaries follow it too.
  absl::Status UseReadinessOrder(const std::vector<int>& order) override;
  absl::Status Tune() override;
  void UsePlan(const plan::BucketPlan& plan);
  // Carries all launched reductions to their end, bucket by bucket in the same order on all ranks.
  absl::Status FinishReductions();
  void Drain();
  absl::Status Launch(int place);
  void NoteGradient(size_t index);
  // Whether this step's times are wanted, and how long its last backward has been going on.
  bool measures() const { return tuner_ != nullptr && collector_.in_last_backward(); }
  double SinceBackward() const;

  comm::Group& group_;
  FlatParameters& flat_;
  const ReducerOptions options_;
  std::unique_ptr<comm::Registration> registration_;
  std::vector<BucketState> buckets_;  // In launch order: the collector's buckets are places here.
  WholeCollector collector_;
  plan::BucketOptions cut_;
  std::vector<int> readiness_;
  std::unique_ptr<BucketTuner> tuner_;  // Null when there is nothing to find out any more.
  BucketSample sample_;                 // The times of the step under way.
  int64_t backward_nanos_ = 0;          // When its last backward began.
  int64_t step_ = 0;
};

}  // namespace dtrain
