#include "runtime/plan/layout/bucket_plan.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/plan/layout/readiness.h"
#include "runtime/plan/stable_hash.h"

namespace dtrain::plan {

int64_t BucketElements(const Config& config, int64_t total) {
  constexpr int64_t kSmallest = 1 << 18;
  constexpr int64_t kWanted = 6;
  return config.overlap_comm()
             ? std::min(config.reduce_bucket_elements(), std::max(kSmallest, total / kWanted))
             : config.reduce_bucket_elements();
}

absl::StatusOr<BucketPlan> BucketPlan::Create(const ParamLayout& layout,
                                              const BucketOptions& options,
                                              absl::Span<const int> readiness) {
  if (options.bucket_elements < 1 || options.first_bucket_elements < 1 ||
      options.last_bucket_elements < 1 || options.rest_parts < 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "bucket sizes %d, %d (first), %d (last) and parts of the rest %d must be at least 1",
        options.bucket_elements, options.first_bucket_elements, options.last_bucket_elements,
        options.rest_parts));
  }
  const std::vector<LayoutEntry>& entries = layout.entries();
  const size_t count = entries.size();
  DT_ASSIGN_OR_RETURN(const std::vector<int> position, ReadinessPositions(count, readiness));
  const int64_t small = std::min(options.first_bucket_elements, options.bucket_elements);
  const auto limit_at = [&](int64_t offset) {
    const int64_t part = (layout.total_elements() - offset) / options.rest_parts;
    return std::min(options.bucket_elements, std::max(options.last_bucket_elements, part));
  };
  const auto end_of = [&](size_t entry) {
    return entry + 1 < count ? entries[entry + 1].offset : layout.total_elements();
  };

  BucketPlan plan;
  std::vector<int> full_at;  // Position at which the last entry of a bucket is ready.
  for (size_t i = 0; i < count; ++i) {
    const int64_t elements = end_of(i) - entries[i].offset;
    const bool first_ready = position[i] == 0;
    bool cut = i == 0 || first_ready;
    if (!cut) {
      const Bucket& open = plan.buckets_.back();
      const bool open_is_first = position[static_cast<size_t>(open.first_entry)] == 0;
      const int64_t limit = open_is_first ? small : limit_at(open.begin);
      const bool jump = position[i] != position[i - 1] + 1;
      cut = open.elements() + elements > limit ||
            (jump && (open.elements() >= small || elements >= small));
    }
    if (cut) {
      plan.buckets_.push_back({static_cast<int>(i), static_cast<int>(i), entries[i].offset, 0});
      full_at.push_back(0);
    }
    plan.buckets_.back().last_entry = static_cast<int>(i) + 1;
    plan.buckets_.back().end = end_of(i);
    full_at.back() = std::max(full_at.back(), position[i]);
  }
  plan.launch_order_.resize(plan.buckets_.size());
  std::iota(plan.launch_order_.begin(), plan.launch_order_.end(), 0);
  std::sort(plan.launch_order_.begin(), plan.launch_order_.end(), [&](int a, int b) {
    return full_at[static_cast<size_t>(a)] < full_at[static_cast<size_t>(b)];
  });
  return plan;
}

uint64_t BucketPlan::hash() const {
  StableHash hash;
  for (const int index : launch_order_) {
    const Bucket& bucket = buckets_[static_cast<size_t>(index)];
    hash.Add(static_cast<uint64_t>(bucket.begin)).Add(static_cast<uint64_t>(bucket.end));
  }
  return hash.value();
}

std::string BucketPlan::ToText() const {
  std::string text;
  for (const int index : launch_order_) {
    const Bucket& bucket = buckets_[static_cast<size_t>(index)];
    absl::StrAppendFormat(&text, "bucket %d: elements [%d, %d), %d tensors\n", index, bucket.begin,
                          bucket.end, bucket.last_entry - bucket.first_entry);
  }
  return text;
}

}  // namespace dtrain::plan
