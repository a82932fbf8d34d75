#include "runtime/plan/layout/persistent_plan.h"

#include <algorithm>

namespace dtrain::plan {

std::vector<size_t> PersistentEntries(const ParamLayout& layout, const PersistenceLimits& limits,
                                      absl::Span<const FlatRange> units) {
  const auto is_in_unit = [units](int64_t offset) {
    return std::any_of(units.begin(), units.end(), [offset](const FlatRange& unit) {
      return unit.begin <= offset && offset < unit.end;
    });
  };
  std::vector<size_t> entries;
  int64_t total = 0;
  for (size_t i = layout.entries().size(); i-- > 0;) {  // Reverse registration order, reversed.
    const int64_t elements = layout.entries()[i].elements;
    if (elements > 0 && elements <= limits.parameter_max && elements <= limits.model_max - total &&
        !is_in_unit(layout.entries()[i].offset)) {
      entries.push_back(i);
      total += elements;
    }
  }
  std::reverse(entries.begin(), entries.end());
  return entries;
}

PersistentPlan MakePersistentPlan(const ParamLayout& layout, const ShardPlan& shards,
                                  int world_size, const PersistenceLimits& limits,
                                  absl::Span<const FlatRange> units) {
  constexpr int64_t kAlign = ParamLayout::kAlignElements;
  PersistentPlan plan;
  plan.entries = PersistentEntries(layout, limits, units);
  for (const size_t entry : plan.entries) {
    plan.offsets.push_back(plan.elements);
    plan.elements += (layout.entries()[entry].elements + kAlign - 1) / kAlign * kAlign;
  }
  for (int rank = 0; rank < world_size; ++rank) {
    std::vector<PersistentPiece>& pieces = plan.pieces.emplace_back();
    int64_t elements = 0;
    for (size_t i = 0; i < plan.entries.size(); ++i) {
      const LayoutEntry& entry = layout.entries()[plan.entries[i]];
      const FlatRange whole{entry.offset, entry.offset + entry.elements};
      const BucketSpan span = shards.spans()[plan.entries[i]];
      for (int bucket = span.first; bucket < span.last; ++bucket) {
        const OwnedRange owned = shards.part(bucket, rank);
        const FlatRange both = Intersect(whole, owned.flat);
        if (both.elements() > 0) {
          pieces.push_back({owned.local_of(both.begin), plan.offsets[i] + both.begin - entry.offset,
                            both.elements()});
          elements += both.elements();
        }
      }
    }
    plan.rank_elements_max = std::max(plan.rank_elements_max, elements);
  }
  return plan;
}

}  // namespace dtrain::plan
