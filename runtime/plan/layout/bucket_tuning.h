// Chooses how to cut the buckets of gradients, from the times of a run's first steps. Pure.
//
// Small buckets start earlier and leave less to wait for after backward, but each costs a call.
// From the moments at which gradients were ready and the times of reductions, every size can be
// simulated without being tried. A link that is nearly as slow as backward wants sizes that shrink
// slowly towards the end, so that no bucket waits for the one before it; with a faster link only
// the last bucket is waited for. The time of calls is taken from the core that computes, since a
// CPU rank has no core to spare. The time of transfers is not.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/plan/layout/bucket_plan.h"
#include "runtime/plan/layout/layout.h"

namespace dtrain::plan {

// Seconds of a reduction: `call_s` and `element_s` for each of its elements.
struct ReductionCost {
  double call_s = 0;
  double element_s = 0;
};

// Fits a line by least squares through (elements, seconds), with neither part below zero. A single
// size cannot show the cost of a call, so all of its time counts for its elements.
ReductionCost FitReductionCost(absl::Span<const std::pair<int64_t, double>> reductions);

// Times of a step's last backward, from its start. Equal on all ranks.
struct BackwardTimes {
  std::vector<double> ready_s = {};  // By layout entry.
  double end_s = 0;
  ReductionCost cost = {};
};

// The time at which the last reduction ends with the buckets of `plan`. REQUIRES: a time for each
// entry.
double EstimateReduced(const BucketPlan& plan, const BackwardTimes& times);

struct TuningBounds {
  int64_t least = 0;  // Elements of a bucket.
  int64_t most = 0;
  int64_t present = 0;
};

// The bounds of the sizes to try, if buckets may have at most `most` elements.
TuningBounds BoundsOfTuning(int64_t most, int64_t present);

struct TunedBuckets {
  BucketOptions options = {};
  double reduced_s = 0;          // EstimateReduced with these options.
  double present_reduced_s = 0;  // EstimateReduced with the present size.
};

// The buckets whose reduction is expected to end soonest. It tries the present size, both bounds
// and sizes between them by doubling, each with several ways to begin and to end. Among results
// that differ by less than half a percent it takes the fewest buckets. `readiness` is BucketPlan's.
// InvalidArgument: bounds that are none, or times of another layout.
absl::StatusOr<TunedBuckets> TuneBuckets(const ParamLayout& layout, absl::Span<const int> readiness,
                                         const BackwardTimes& times, const TuningBounds& bounds);

}  // namespace dtrain::plan
