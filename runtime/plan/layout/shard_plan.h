// ShardPlan: which elements of the flat buffers each rank owns at ZeRO stages 1 to 3, and in which
// pieces they travel.
//
// A pure function of layout, sizes and world size. The flat buffer, padded to whole grains of world
// size x alignment, is cut into buckets of whole grains. Rank r owns the r-th of the equal parts of
// every bucket, so a reduce-scatter of one bucket gives each rank its part, and all links carry the
// same at any time. (If the whole buffer were cut by rank, each bucket would go to one rank only.)
// A rank keeps its parts one after the other: its shard. Buckets may split a tensor.
//
// If a program names units, a bucket ends at the last allowed place before the border of each unit.
// The rest of that unit is in the next bucket. Buckets follow reverse registration order, so the
// next bucket holds what the model reads directly before in forward and directly after in backward.
//
// Unlike a BucketPlan it never changes, since the moments are stored by it. Readiness decides only
// the launch order. Immutable; thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/plan/layout/bucket_plan.h"
#include "runtime/plan/layout/layout.h"

namespace dtrain::plan {

// Elements [begin, end) of the flat buffer.
struct FlatRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t elements() const { return end - begin; }
  bool operator==(const FlatRange&) const = default;
};

// The common part of both ranges; empty (begin == end) if there is none.
FlatRange Intersect(FlatRange a, FlatRange b);

// A range of the flat buffer and where a rank keeps it: element `local` of its buffers on.
struct OwnedRange {
  FlatRange flat;
  int64_t local = 0;
  // The shard's element that keeps element `element` of the flat buffer. REQUIRES: it is in `flat`.
  int64_t local_of(int64_t element) const { return local + element - flat.begin; }
  bool operator==(const OwnedRange&) const = default;
};

// Buckets [first, last) that hold a part of an entry.
struct BucketSpan {
  int first = 0;
  int last = 0;
  bool operator==(const BucketSpan&) const = default;
};

struct ShardOptions {
  // Bounds of the buckets, rounded down to whole grains and multiples of `bucket_multiple`, but at
  // least one of each.
  BucketOptions buckets = {};
  int world_size = 1;
  // Alignment of the parts, a multiple of ParamLayout::kAlignElements. It is the norm's block
  // (kernels/optimizer/grad_norm.h) where ZeroPolicy::owns_whole_blocks says so.
  int64_t align_elements = ParamLayout::kAlignElements;
  // Buckets begin at multiples of it. On a GPU each has memory of its own, of whole granules.
  int64_t bucket_multiple = 1;
  // Ranges that become one bucket each: ascending, without overlap (FindUnits). A unit larger than
  // `unit_elements_max`, rounded as above, becomes as few equal buckets as that allows. `buckets`
  // bounds the buckets between units. A unit too small to hold a border has no bucket of its own.
  std::vector<FlatRange> units = {};
  int64_t unit_elements_max = std::numeric_limits<int64_t>::max();

  int64_t grain() const { return world_size * align_elements; }
  // Length of a flat buffer of `elements`, padding included: whole grains, one at least.
  int64_t padded(int64_t elements) const {
    return std::max<int64_t>(1, (elements + grain() - 1) / grain()) * grain();
  }
};

class ShardPlan {
 public:
  // InvalidArgument: a limit or a world size below 1, another alignment.
  static absl::StatusOr<ShardPlan> Create(const ParamLayout& layout, const ShardOptions& options);

  // In layout order; together [0, padded_elements()).
  const std::vector<FlatRange>& buckets() const { return buckets_; }
  // Length of a flat buffer with its padding, of zeros.
  int64_t padded_elements() const { return buckets_.back().end; }
  int64_t total_elements() const { return total_elements_; }  // The layout's.
  // Elements that one rank keeps.
  int64_t shard_elements() const { return padded_elements() / world_size_; }
  int64_t largest_bucket() const { return largest_bucket_; }
  int64_t bucket_multiple() const { return bucket_multiple_; }  // The option of that name.
  // The part of a bucket that `rank` owns, and its place in the shard. REQUIRES: both in range.
  OwnedRange part(int bucket, int rank) const;
  // All that `rank` owns of the layout itself, without padding, in the order in which it keeps it;
  // none is empty.
  std::vector<OwnedRange> owned(int rank) const;
  // By layout entry.
  const std::vector<BucketSpan>& spans() const { return spans_; }
  // By bucket: the ranges that no entry covers, padding included.
  const std::vector<std::vector<FlatRange>>& gaps() const { return gaps_; }
  // The buckets that elements of `range` lie in. REQUIRES: not empty, below padded_elements().
  BucketSpan BucketsOf(FlatRange range) const;
  // Buckets in the order in which they are expected to be full; `readiness` as BucketPlan takes it.
  // If readiness leaves a choice, the layout's order decides.
  absl::StatusOr<std::vector<int>> LaunchOrder(absl::Span<const int> readiness) const;

 private:
  ShardPlan() = default;
  void CutBuckets(const ShardOptions& options);
  int64_t end_of_buckets() const { return buckets_.empty() ? 0 : buckets_.back().end; }

  std::vector<FlatRange> buckets_;
  std::vector<BucketSpan> spans_;
  std::vector<std::vector<FlatRange>> gaps_;
  int64_t total_elements_ = 0;
  int64_t largest_bucket_ = 0;
  int64_t bucket_multiple_ = 1;
  int world_size_ = 1;
};

}  // namespace dtrain::plan
