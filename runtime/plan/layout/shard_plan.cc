#include "runtime/plan/layout/shard_plan.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status.h"
#include "runtime/plan/layout/readiness.h"

namespace dtrain::plan {

namespace {

absl::Status Check(const ShardOptions& options) {
  const BucketOptions& sizes = options.buckets;
  if (sizes.bucket_elements < 1 || sizes.first_bucket_elements < 1 || options.world_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("bucket sizes %d and %d (first) and world size %d must be at least 1",
                        sizes.bucket_elements, sizes.first_bucket_elements, options.world_size));
  }
  if (options.bucket_multiple < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("buckets cannot begin at multiples of %d", options.bucket_multiple));
  }
  if (options.align_elements < 1 || options.align_elements % ParamLayout::kAlignElements != 0) {
    return absl::InvalidArgumentError(absl::StrFormat("alignment %d is no multiple of %d elements",
                                                      options.align_elements,
                                                      ParamLayout::kAlignElements));
  }
  return absl::OkStatus();
}

}  // namespace

FlatRange Intersect(FlatRange a, FlatRange b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

void ShardPlan::CutBuckets(const ShardOptions& options) {
  const BucketOptions& sizes = options.buckets;
  const int64_t padded = options.padded(total_elements_);
  // Buckets begin at multiples.
  const int64_t step = std::lcm(options.grain(), options.bucket_multiple);
  const auto whole_steps = [step](int64_t elements) {
    return std::max(step, elements / step * step);
  };
  const auto cut = [&](int64_t end, int64_t limit) {
    while (end_of_buckets() < end) {
      const int64_t begin = end_of_buckets();
      buckets_.push_back({begin, std::min(begin + limit, end)});
      largest_bucket_ = std::max(largest_bucket_, buckets_.back().elements());
    }
  };
  const auto cut_between_units = [&](int64_t end) {
    if (buckets_.empty()) {
      const int64_t first = std::min(sizes.first_bucket_elements, sizes.bucket_elements);
      cut(std::min(end, whole_steps(first)), end);
    }
    cut(end, whole_steps(sizes.bucket_elements));
  };
  for (const FlatRange& unit : options.units) {
    cut_between_units(unit.begin / step * step);
    const int64_t end = unit.end >= total_elements_ ? padded : unit.end / step * step;
    const int64_t limit = whole_steps(options.unit_elements_max);
    const int64_t elements = std::max<int64_t>(0, end - end_of_buckets());
    const int64_t parts = elements / limit + (elements % limit != 0 ? 1 : 0);
    if (parts > 0) {
      cut(end, ((elements + parts - 1) / parts + step - 1) / step * step);
    }
  }
  cut_between_units(padded);
}

absl::StatusOr<ShardPlan> ShardPlan::Create(const ParamLayout& layout,
                                            const ShardOptions& options) {
  DT_RETURN_IF_ERROR(Check(options));
  ShardPlan plan;
  plan.world_size_ = options.world_size;
  plan.bucket_multiple_ = options.bucket_multiple;
  plan.total_elements_ = layout.total_elements();
  plan.CutBuckets(options);
  plan.gaps_.resize(plan.buckets_.size());
  int64_t covered = 0;
  const auto add_gap = [&plan](FlatRange gap) {
    for (size_t i = 0; i < plan.buckets_.size(); ++i) {
      if (const FlatRange piece = Intersect(gap, plan.buckets_[i]); piece.elements() > 0) {
        plan.gaps_[i].push_back(piece);
      }
    }
  };
  int bucket = 0;
  for (const LayoutEntry& entry : layout.entries()) {
    if (entry.offset > covered) {
      add_gap({covered, entry.offset});
    }
    covered = entry.offset + entry.elements;
    if (entry.elements == 0) {  // May stand behind the last bucket.
      plan.spans_.push_back({bucket, bucket});
      continue;
    }
    const auto end_of = [&](int index) { return plan.buckets_[static_cast<size_t>(index)].end; };
    while (entry.offset >= end_of(bucket)) {
      ++bucket;
    }
    int last = bucket;
    while (entry.offset + entry.elements > end_of(last)) {
      ++last;
    }
    plan.spans_.push_back({bucket, last + 1});
  }
  add_gap({covered, plan.padded_elements()});
  return plan;
}

OwnedRange ShardPlan::part(int bucket, int rank) const {
  const FlatRange range = buckets_[static_cast<size_t>(bucket)];
  const int64_t elements = range.elements() / world_size_;
  const int64_t begin = range.begin + rank * elements;
  return {{begin, begin + elements}, range.begin / world_size_};
}

std::vector<OwnedRange> ShardPlan::owned(int rank) const {
  std::vector<OwnedRange> all;
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    OwnedRange range = part(static_cast<int>(bucket), rank);
    range.flat.end = std::min(range.flat.end, total_elements_);
    if (range.flat.begin < range.flat.end) {
      all.push_back(range);
    }
  }
  return all;
}

BucketSpan ShardPlan::BucketsOf(FlatRange range) const {
  DT_CHECK(range.begin >= 0 && range.begin < range.end && range.end <= padded_elements())
      << "elements " << range.begin << " to " << range.end;
  const auto holds = [&](int64_t element) {
    const auto after =
        std::upper_bound(buckets_.begin(), buckets_.end(), element,
                         [](int64_t at, const FlatRange& bucket) { return at < bucket.end; });
    return static_cast<int>(after - buckets_.begin());
  };
  return {holds(range.begin), holds(range.end - 1) + 1};
}

absl::StatusOr<std::vector<int>> ShardPlan::LaunchOrder(absl::Span<const int> readiness) const {
  DT_ASSIGN_OR_RETURN(const std::vector<int> position,
                      ReadinessPositions(spans_.size(), readiness));
  const auto never = static_cast<int>(readiness.size());  // All at once, when backward is over.
  std::vector<int> full_at(buckets_.size(), 0);
  for (size_t entry = 0; entry < spans_.size(); ++entry) {
    for (int bucket = spans_[entry].first; bucket < spans_[entry].last; ++bucket) {
      int& at = full_at[static_cast<size_t>(bucket)];
      at = std::max(at, std::min(position[entry], never));
    }
  }
  std::vector<int> order(buckets_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return full_at[static_cast<size_t>(a)] < full_at[static_cast<size_t>(b)];
  });
  return order;
}

}  // namespace dtrain::plan
