#include "runtime/plan/layout/coalesced_buckets.h"

#include <algorithm>

namespace dtrain::plan {

std::vector<uint8_t> EndsOfCoalesced(const std::vector<BucketSpan>& spans,
                                     const std::vector<int>& order) {
  std::vector<size_t> position(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    position[static_cast<size_t>(order[i])] = i;
  }
  // By position: an entry comes in that no bucket before has a part of.
  std::vector<uint8_t> waits(order.size(), 0);
  for (const BucketSpan& span : spans) {
    if (span.first < span.last) {
      waits[*std::min_element(position.begin() + span.first, position.begin() + span.last)] = 1;
    }
  }
  std::vector<uint8_t> ends(order.size(), 1);
  int together = 1;
  for (size_t i = 1; i < order.size(); ++i) {
    const bool joins = waits[i] == 0 && together < kCoalescedBucketsMax;
    ends[static_cast<size_t>(order[i - 1])] = joins ? 0 : 1;
    together = joins ? together + 1 : 1;
  }
  return ends;
}

}  // namespace dtrain::plan
