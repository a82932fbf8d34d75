#include "runtime/plan/layout/need_order.h"

#include <cstddef>
#include <cstdint>

namespace dtrain::plan {

std::vector<int> NeedOrder(int buckets, absl::Span<const int> reads) {
  std::vector<uint8_t> named(static_cast<size_t>(buckets), 0);
  std::vector<int> order;
  order.reserve(named.size());
  const auto add = [&](int bucket) {
    if (named[static_cast<size_t>(bucket)] == 0) {
      named[static_cast<size_t>(bucket)] = 1;
      order.push_back(bucket);
    }
  };
  for (const int bucket : reads) {
    add(bucket);
  }
  for (int bucket = buckets; bucket-- > 0;) {
    add(bucket);
  }
  return order;
}

}  // namespace dtrain::plan
