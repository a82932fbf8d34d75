// Finds how gradient buckets are cut while a run takes its first steps.
//
// A few steps are measured with the present buckets, better ones are computed from their times
// (plan/layout/bucket_tuning.h), a few steps are measured with those, and what was faster stays.
// Ranks agree on times before they compute and take rank 0's result, so that all cut alike. Times
// come from the caller: there is no clock here. Driven by one thread.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "comm/group.h"
#include "runtime/plan/layout/bucket_tuning.h"
#include "runtime/plan/layout/layout.h"

namespace dtrain {

// The times of one step, from the start of its last backward.
struct BucketSample {
  std::vector<double> ready_s = {};  // By layout entry; below 0: it never was.
  double backward_s = 0;
  double reduced_s = 0;  // All buckets.
  // Elements and seconds, in launch order.
  std::vector<std::pair<int64_t, double>> reductions = {};
};

class BucketTuner {
 public:
  static constexpr int kSamples = 3;  // With the same buckets; of each time the least counts.

  // `group` outlives it.
  BucketTuner(comm::Group& group, const plan::TuningBounds& bounds)
      : group_(group), bounds_(bounds), options_{.bucket_elements = bounds.present} {}

  bool done() const { return phase_ == Phase::kDone; }
  // Collective, after each step until done(), with its times: how buckets are cut from now on.
  absl::StatusOr<plan::BucketOptions> AfterStep(BucketSample sample,
                                                const plan::ParamLayout& layout,
                                                absl::Span<const int> readiness);

 private:
  enum class Phase : uint8_t { kPresent, kFirstOfOther, kOther, kDone };

  void Merge(BucketSample sample);
  // All ranks' times: readiness and ends of the latest, reductions of the fastest, since the
  // others waited for it.
  absl::Status Agree();
  absl::Status Choose(const plan::ParamLayout& layout, absl::Span<const int> readiness);
  void Compare();

  comm::Group& group_;
  const plan::TuningBounds bounds_;
  Phase phase_ = Phase::kPresent;
  plan::BucketOptions options_;
  BucketSample least_;  // The phase's.
  int samples_ = 0;
  double present_reduced_s_ = 0;
};

}  // namespace dtrain
