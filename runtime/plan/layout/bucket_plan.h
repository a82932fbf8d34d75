// BucketPlan: how the flat gradient buffer is cut into pieces that are reduced while backward runs.
//
// A pure function: layout, sizes and (from the second step on) the order in which gradients became
// ready. Buckets are contiguous ranges of the flat buffer at entry boundaries, cover it exactly
// once and never split a tensor. Ranks must use equal plans: compare hash(). Immutable;
// thread-safe.
//
// Rules, in layout order. A bucket is closed when the next entry would take it above the limit; an
// entry larger than the limit is a bucket of its own. The bucket that is ready first has the small
// limit, so that communication starts early. With `rest_parts` above 1 buckets become smaller
// towards the end of the buffer, which is ready last: what is still to be reduced when backward
// ends is then the smallest of them, while most bytes travel in large ones. With a readiness order
// a bucket is also closed where the order jumps (the next entry did not become ready directly after
// this one), unless both sides of the cut would be smaller than the small limit: a late gradient
// then delays no early ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtrain/config.h"
#include "runtime/plan/layout/layout.h"

namespace dtrain::plan {

struct BucketOptions {
  int64_t bucket_elements = 6'553'600;      // 25 MiB of fp32.
  int64_t first_bucket_elements = 262'144;  // 1 MiB of fp32; at most bucket_elements is used.
  // A bucket is at most this part (1/n) of what is left of the buffer where it begins; 1: any.
  int64_t rest_parts = 1;
  int64_t last_bucket_elements = 65'536;  // `rest_parts` never asks for fewer.

  bool operator==(const BucketOptions&) const = default;
};

// The largest bucket for a model of `total` elements: reduce_bucket_size; with overlap_comm a small
// model is cut all the same, so that most of its reduction hides behind backward.
int64_t BucketElements(const Config& config, int64_t total);

// Entries [first_entry, last_entry) of the layout, elements [begin, end) of the flat buffer.
struct Bucket {
  int first_entry = 0;
  int last_entry = 0;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t elements() const { return end - begin; }
};

class BucketPlan {
 public:
  // `readiness`: indices of layout.entries() in the order their gradients became ready; empty: the
  // layout's own order. Entries it leaves out (unused parameters) count as ready last.
  // InvalidArgument: a number of `options` below 1, an index out of range or repeated.
  static absl::StatusOr<BucketPlan> Create(const ParamLayout& layout, const BucketOptions& options,
                                           absl::Span<const int> readiness = {});

  // In layout order.
  const std::vector<Bucket>& buckets() const { return buckets_; }
  // Indices of buckets() in the order in which they are expected to be full. Every rank launches
  // its collectives in this order, whatever happens to be ready on it.
  const std::vector<int>& launch_order() const { return launch_order_; }
  uint64_t hash() const;
  // For `dtrain plan` and logs: one line a bucket in launch order.
  std::string ToText() const;

 private:
  BucketPlan() = default;
  std::vector<Bucket> buckets_;
  std::vector<int> launch_order_;
};

}  // namespace dtrain::plan
