// Decides which parameters stay whole on every rank at ZeRO stage 3, and how they travel after an
// update.
//
// DeepSpeed's rule (stage3_param_persistence_threshold): a parameter of at most `parameter_max`
// elements is persistent, in registration order while all of them together have at most
// `model_max`. Persistent parameters lie one after the other in a memory of their own; the
// ShardPlan says which rank owns which of their elements. A parameter that begins in one of `units`
// (WholeUnits) is never persistent: it comes and goes with its unit. Pure; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "dtrain/config.h"
#include "runtime/plan/layout/layout.h"
#include "runtime/plan/layout/shard_plan.h"

namespace dtrain::plan {

// The layout's entries that are persistent, ascending.
std::vector<size_t> PersistentEntries(const ParamLayout& layout, const PersistenceLimits& limits,
                                      absl::Span<const FlatRange> units = {});

// `elements` of a rank's shard, from `local` on, which are in the persistent memory from `at` on.
struct PersistentPiece {
  int64_t local = 0;
  int64_t at = 0;
  int64_t elements = 0;
  bool operator==(const PersistentPiece&) const = default;
};

struct PersistentPlan {
  std::vector<size_t> entries;   // Ascending.
  std::vector<int64_t> offsets;  // By place in `entries`: its start, aligned as in the layout.
  int64_t elements = 0;          // Length of the memory, gaps included.
  // By rank: the pieces that it owns, in the order in which they travel.
  std::vector<std::vector<PersistentPiece>> pieces;
  int64_t rank_elements_max = 0;  // Most elements in the pieces of one rank.

  bool empty() const { return entries.empty(); }
};

PersistentPlan MakePersistentPlan(const ParamLayout& layout, const ShardPlan& shards,
                                  int world_size, const PersistenceLimits& limits,
                                  absl::Span<const FlatRange> units = {});

}  // namespace dtrain::plan
