#include "runtime/plan/layout/block_sizes.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace dtrain::plan {

std::vector<int64_t> BlockSizes(std::vector<int64_t> buckets, int64_t live_max) {
  std::sort(buckets.begin(), buckets.end(), std::greater<>());
  std::vector<int64_t> before = {0};  // Elements of the buckets before each.
  for (const int64_t bucket : buckets) {
    before.push_back(before.back() + bucket);
  }
  std::vector<int64_t> blocks;
  size_t last = 0;
  for (size_t others = 0; others < buckets.size(); ++others) {
    // Among the sets of so many other buckets, none smaller than buckets[last], the one directly
    // before `last` has the fewest elements.
    last = std::max(last, others);
    while (last < buckets.size() && before[last + 1] - before[last - others] > live_max) {
      ++last;
    }
    if (last == buckets.size()) {
      break;
    }
    blocks.push_back(buckets[last]);
  }
  if (!buckets.empty() && blocks.size() < buckets.size()) {
    blocks.insert(blocks.begin(), buckets.front());
  }
  return blocks;
}

std::vector<int64_t> BlocksOf(const ShardPlan& shards, int64_t live_max) {
  std::vector<int64_t> buckets;
  for (const FlatRange& bucket : shards.buckets()) {
    buckets.push_back(bucket.elements());
  }
  std::vector<int64_t> blocks = BlockSizes(std::move(buckets), live_max);
  const int64_t multiple = shards.bucket_multiple();
  for (int64_t& block : blocks) {
    block = (block + multiple - 1) / multiple * multiple;
  }
  return blocks;
}

}  // namespace dtrain::plan
