#include "runtime/shard/first_reads.h"

#include <algorithm>
#include <cstddef>

namespace dtrain {

FirstReads::FirstReads(FlatParameters& flat, const plan::ShardPlan& shards)
    : shards_(shards), read_(shards.buckets().size(), 0) {
  observer_.emplace(flat.values(), *this);
}

void FirstReads::Restart() {
  const std::lock_guard lock(mutex_);
  if (observer_.has_value()) {
    std::fill(read_.begin(), read_.end(), uint8_t{0});
    order_.clear();
  }
}

std::vector<int> FirstReads::order() const {
  const std::lock_guard lock(mutex_);
  return order_;
}

void FirstReads::BeforeRead(int64_t begin, int64_t end) {
  const plan::BucketSpan span = shards_.BucketsOf({begin, end});
  const std::lock_guard lock(mutex_);
  for (int bucket = span.first; bucket < span.last; ++bucket) {
    if (read_[static_cast<size_t>(bucket)] == 0) {
      read_[static_cast<size_t>(bucket)] = 1;
      order_.push_back(bucket);
    }
  }
}

}  // namespace dtrain
