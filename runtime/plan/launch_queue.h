// Which buckets may be reduced, as gradients become ready: in one order on every rank.
//
// Not thread-safe. No memory is taken after the constructor.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "runtime/plan/shard_plan.h"

namespace dtrain::plan {

class LaunchQueue {
 public:
  using Launch = absl::FunctionRef<void(int bucket)>;

  // `spans` by entry; `order`: every bucket once.
  LaunchQueue(std::vector<BucketSpan> spans, std::vector<int> order);

  // A backward begins: nothing is ready, nothing launched.
  void Arm();
  // The entry's gradient is in place. Calls `launch` for each bucket that is full now and before
  // which no bucket of the order is missing. An entry that was ready changes nothing.
  void Ready(size_t entry, Launch launch);
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
  void LaunchFull(Launch launch);

  std::vector<BucketSpan> spans_;
  std::vector<int> order_;
  std::vector<int> parts_;    // Entries in each bucket.
  std::vector<int> pending_;  // Of them not ready.
  std::vector<uint8_t> launched_;
  std::vector<uint8_t> ready_;
  std::vector<int> readiness_;
  size_t next_ = 0;
};

}  // namespace dtrain::plan
