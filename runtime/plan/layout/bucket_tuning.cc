#include "runtime/plan/layout/bucket_tuning.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace dtrain::plan {
namespace {

constexpr int64_t kLeastElements = 1 << 16;  // 256 KiB of fp32.
constexpr double kEqual = 1.005;

std::vector<int64_t> Candidates(const TuningBounds& bounds) {
  std::vector<int64_t> sizes = {bounds.present, bounds.most};
  for (int64_t size = bounds.least; size < bounds.most; size *= 2) {
    sizes.push_back(size);
  }
  std::sort(sizes.begin(), sizes.end());
  return sizes;
}

// The ways to cut buckets of one size: how large the first is, and at most what part of the rest
// each other one is. The way with the fewest buckets comes last.
std::vector<BucketOptions> Forms(int64_t size, int64_t least) {
  const BucketOptions usual{.bucket_elements = size};
  std::vector<BucketOptions> forms;
  for (const int64_t parts : {16, 8, 4, 2, 1}) {
    for (const int64_t first : {least, usual.first_bucket_elements}) {
      BucketOptions form = usual;
      form.first_bucket_elements = std::min(first, usual.first_bucket_elements);
      form.rest_parts = parts;
      form.last_bucket_elements = std::min(least, usual.last_bucket_elements);
      forms.push_back(form);
    }
  }
  return forms;
}

}  // namespace

ReductionCost FitReductionCost(absl::Span<const std::pair<int64_t, double>> reductions) {
  double count = 0;
  double elements = 0;
  double seconds = 0;
  for (const auto& [size, time] : reductions) {
    ++count;
    elements += static_cast<double>(size);
    seconds += time;
  }
  if (count == 0 || elements == 0) {
    return {.call_s = count == 0 ? 0 : std::max(0.0, seconds / count)};
  }
  double spread = 0;
  double together = 0;
  for (const auto& [size, time] : reductions) {
    const double x = static_cast<double>(size) - elements / count;
    spread += x * x;
    together += x * (time - seconds / count);
  }
  const double slope = spread > 0 ? together / spread : 0;
  const double call = (seconds - slope * elements) / count;
  if (slope <= 0 || call <= 0) {
    // The sizes differ too little to tell calls from elements: a line through zero, or no cost.
    return {.element_s = std::max(0.0, seconds / elements)};
  }
  return {.call_s = call, .element_s = slope};
}

double EstimateReduced(const BucketPlan& plan, const BackwardTimes& times) {
  double end = 0;
  double calls = 0;
  for (const int index : plan.launch_order()) {
    const Bucket& bucket = plan.buckets()[static_cast<size_t>(index)];
    const auto first = times.ready_s.begin() + bucket.first_entry;
    const double full = *std::max_element(first, times.ready_s.begin() + bucket.last_entry);
    end = std::max(end, full + calls) + times.cost.call_s +
          times.cost.element_s * static_cast<double>(bucket.elements());
    calls += times.cost.call_s;
  }
  return std::max(end, times.end_s + calls);
}

TuningBounds BoundsOfTuning(int64_t most, int64_t present) {
  return {.least = std::max<int64_t>(1, std::min(kLeastElements, most / 16)),
          .most = most,
          .present = present};
}

absl::StatusOr<TunedBuckets> TuneBuckets(const ParamLayout& layout, absl::Span<const int> readiness,
                                         const BackwardTimes& times, const TuningBounds& bounds) {
  if (bounds.least < 1 || bounds.most < bounds.least || bounds.present < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("buckets of %d elements are to be tuned between %d and %d; allowed: 1 or "
                        "more, the first bound at most the second",
                        bounds.present, bounds.least, bounds.most));
  }
  if (times.ready_s.size() != layout.entries().size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d times of readiness for a layout of %d entries", times.ready_s.size(),
                        layout.entries().size()));
  }
  const auto reduced_with = [&](const BucketOptions& options) -> absl::StatusOr<double> {
    DT_ASSIGN_OR_RETURN(const BucketPlan plan, BucketPlan::Create(layout, options, readiness));
    return EstimateReduced(plan, times);
  };
  TunedBuckets best{.options = {.bucket_elements = bounds.present}};
  DT_ASSIGN_OR_RETURN(best.present_reduced_s, reduced_with(best.options));
  best.reduced_s = best.present_reduced_s;
  double least = best.reduced_s;
  for (const int64_t size : Candidates(bounds)) {
    for (const BucketOptions& form : Forms(size, bounds.least)) {
      DT_ASSIGN_OR_RETURN(const double reduced, reduced_with(form));
      if (reduced <= least * kEqual) {
        best.options = form;
        best.reduced_s = reduced;
        least = std::min(least, reduced);
      }
    }
  }
  return best;
}

}  // namespace dtrain::plan
