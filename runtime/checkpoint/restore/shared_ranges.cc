#include "runtime/checkpoint/restore/shared_ranges.h"

#include <algorithm>

namespace dtrain {
namespace {

std::vector<plan::OwnedRange> InLayoutOrder(absl::Span<const plan::OwnedRange> ranges) {
  std::vector<plan::OwnedRange> sorted(ranges.begin(), ranges.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return a.flat.begin != b.flat.begin ? a.flat.begin < b.flat.begin : a.flat.end < b.flat.end;
  });
  return sorted;
}

void AppendRange(const SharedRange& range, std::vector<SharedRange>& all) {
  if (!all.empty() && all.back().from + all.back().elements == range.from &&
      all.back().to + all.back().elements == range.to) {
    all.back().elements += range.elements;
  } else {
    all.push_back(range);
  }
}

}  // namespace

std::vector<SharedRange> SharedRanges(absl::Span<const plan::OwnedRange> from,
                                      absl::Span<const plan::OwnedRange> to) {
  const std::vector<plan::OwnedRange> a = InLayoutOrder(from);
  const std::vector<plan::OwnedRange> b = InLayoutOrder(to);
  std::vector<SharedRange> shared;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const plan::FlatRange both = plan::Intersect(a[i].flat, b[j].flat);
    if (both.elements() > 0) {
      AppendRange({a[i].local_of(both.begin), b[j].local_of(both.begin), both.elements()}, shared);
    }
    ++(a[i].flat.end < b[j].flat.end ? i : j);
  }
  return shared;
}

int64_t ElementsOf(absl::Span<const plan::OwnedRange> ranges) {
  int64_t elements = 0;
  for (const plan::OwnedRange& range : ranges) {
    elements += range.flat.elements();
  }
  return elements;
}

int64_t ElementsOf(absl::Span<const SharedRange> ranges) {
  int64_t elements = 0;
  for (const SharedRange& range : ranges) {
    elements += range.elements;
  }
  return elements;
}

}  // namespace dtrain
