// How the buckets of gradients should be cut, from the times of a run's first steps. Pure.
//
// Small buckets start earlier and leave less to wait for after backward; each costs a call. With
// the moments at which gradients were ready and what reductions of a size took, every size can be
// played through without being tried. A link that is nearly as slow as backward wants sizes that
// shrink slowly towards the end, so that no bucket waits for one before it; a faster one leaves
// only the last to wait for. What calls cost is taken from the core that computes, since a CPU rank
// has no core to spare; what only travels is not.
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

// The line of least squares through (elements, seconds), neither part below zero. A single size
// says nothing of calls: it costs its elements.
ReductionCost FitReductionCost(absl::Span<const std::pair<int64_t, double>> reductions);

// Of a step's last backward, from its start. Equal on all ranks.
struct BackwardTimes {
  std::vector<double> ready_s = {};  // By layout entry.
  double end_s = 0;
  ReductionCost cost = {};
};

// When the last reduction ends if buckets are those of `plan`. REQUIRES: a time for each entry.
double EstimateReduced(const BucketPlan& plan, const BackwardTimes& times);

struct TuningBounds {
  int64_t least = 0;  // Elements of a bucket.
  int64_t most = 0;
  int64_t present = 0;
};

// Bounds between which sizes are tried when buckets may have at most `most` elements.
TuningBounds BoundsOfTuning(int64_t most, int64_t present);

struct TunedBuckets {
  BucketOptions options = {};
  double reduced_s = 0;          // EstimateReduced of them,
  double present_reduced_s = 0;  // and of the present size.
};

// What is done soonest: of the present size, the bounds and what lies between them by doubling,
// each with several ways to begin and to end. Of what is equal to half a percent the fewest
// buckets. `readiness` as of BucketPlan.
// InvalidArgument: bounds that are none, or times of another layout.
absl::StatusOr<TunedBuckets> TuneBuckets(const ParamLayout& layout, absl::Span<const int> readiness,
                                         const BackwardTimes& times, const TuningBounds& bounds);

}  // namespace dtrain::plan
