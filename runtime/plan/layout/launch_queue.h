// Which buckets may be reduced, as gradients become ready: in one order on every rank.
//
// Entries of a unit count as ready together, when the unit has ended: whichever of them have a
// gradient on a rank, its buckets are launched at the same place on all.
//
// Not thread-safe. No memory is taken after the constructor and UseUnits.
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

  // By unit its entries, of which each is in one unit at most. REQUIRES: between backwards.
  void UseUnits(std::vector<std::vector<size_t>> units);

  // A backward begins: nothing is ready, nothing launched.
  void Arm();
  // The entry's gradient is in place. Calls `launch` for each bucket that is full now and before
  // which no bucket of the order is missing. An entry that was ready changes nothing, and one of a
  // unit is held until EndUnit.
  void Ready(size_t entry, Launch launch);
  // Every entry of the unit is in place, as with Ready. A unit that has ended changes nothing.
  void EndUnit(size_t unit, Launch launch);
  const std::vector<size_t>& unit(size_t index) const { return units_[index]; }
  // Whatever is missing counts as ready.
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
  std::vector<int> pending_;  // Of them not ready.
  std::vector<uint8_t> launched_;
  std::vector<uint8_t> ready_;
  std::vector<int> readiness_;
  std::vector<std::vector<size_t>> units_;
  std::vector<uint8_t> is_held_;  // By entry: its unit has not ended. Empty: there are no units.
  size_t next_ = 0;
};

}  // namespace dtrain::plan
