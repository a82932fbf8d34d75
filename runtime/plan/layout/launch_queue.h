// Decides which buckets may be reduced as gradients become ready, in one order on every rank.
//
// Entries of a unit count as ready together, when the unit has ended. Its buckets are therefore
// launched at the same place on all ranks, whichever entries have a gradient on a rank.
//
// Not thread-safe. Only the constructor and UseUnits allocate memory.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "runtime/plan/layout/shard_plan.h"

namespace dtrain::plan {

class LaunchQueue {
 public:
  using Launch = absl::FunctionRef<void(int bucket)>;

  // `spans` by entry; `order`: every bucket once.
  LaunchQueue(std::vector<BucketSpan> spans, std::vector<int> order);

  // Sets the entries of each unit; an entry is in one unit at most. REQUIRES: between backwards.
  void UseUnits(std::vector<std::vector<size_t>> units);

  // A backward begins: nothing is ready, nothing launched.
  void Arm();
  // The entry's gradient is in place. Calls `launch` for each full bucket whose predecessors in the
  // order are all launched. A second call for an entry changes nothing. An entry of a unit is held
  // until EndUnit.
  void Ready(size_t entry, Launch launch);
  // All entries of the unit are ready now. A second call for a unit changes nothing.
  void EndUnit(size_t unit, Launch launch);
  const std::vector<size_t>& unit(size_t index) const { return units_[index]; }
  // All entries that are missing count as ready.
  void ReadyAll(Launch launch);
  bool is_ready(size_t entry) const { return ready_[entry] != 0; }
  // Whether a bucket of the entry was launched since Arm.
  bool is_launched(size_t entry) const;
  // Entries in the order in which they became ready since Arm, without those of ReadyAll.
  const std::vector<int>& readiness() const { return readiness_; }
  size_t entries() const { return spans_.size(); }

  // Takes another order. REQUIRES: between backwards.
  void UseOrder(std::vector<int> order);

 private:
  void Count(size_t entry);
  void LaunchFull(Launch launch);

  std::vector<BucketSpan> spans_;
  std::vector<int> order_;
  std::vector<int> parts_;    // Entries in each bucket.
  std::vector<int> pending_;  // Entries in each bucket that are not ready.
  std::vector<uint8_t> launched_;
  std::vector<uint8_t> ready_;
  std::vector<int> readiness_;
  std::vector<std::vector<size_t>> units_;
  std::vector<uint8_t> is_held_;  // By entry: its unit has not ended. Empty: there are no units.
  size_t next_ = 0;
};

}  // namespace dtrain::plan
