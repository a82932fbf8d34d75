// Small parameters that stay whole on every rank at ZeRO stage 3 (plan/persistent_plan.h): they
// live in a memory of their own, which no gather touches, and are brought up to date by one
// all-gather after each update. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "comm/group.h"
#include "runtime/engine/flat_parameters.h"
#include "runtime/plan/persistent_plan.h"

namespace dtrain {

class PersistentParameters {
 public:
  // Moves them there; their values come with the first Refresh. `shard`: this rank's values,
  // [shard elements] of the flat values' type. REQUIRES: `group`, `flat` and `shard` outlive this
  // object.
  PersistentParameters(comm::Group& group, FlatParameters& flat, const std::byte* shard,
                       plan::PersistentPlan plan);

  // Collective: takes every rank's share of them.
  absl::Status Refresh();
  bool has(size_t entry) const { return has_[entry] != 0; }
  // Held for good. Refresh takes up to as much again while it runs.
  int64_t bytes() const { return static_cast<int64_t>(values_.nbytes()); }

 private:
  comm::Group& group_;
  const plan::PersistentPlan plan_;
  const std::byte* const shard_;
  std::vector<uint8_t> has_;  // By entry.
  at::Tensor values_;         // [plan_.elements] of the flat values' type.
};

}  // namespace dtrain
