// In which order the operations of a forward first read the buckets of the flat values: recorded
// once, in a run's first step. Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/model/flat_parameters.h"
#include "runtime/plan/layout/shard_plan.h"
#include "runtime/shard/storage_observer.h"

namespace dtrain {

class FirstReads final : public StorageObserver::Listener {
 public:
  // Records from now on. REQUIRES: both outlive this object.
  FirstReads(FlatParameters& flat, const plan::ShardPlan& shards);

  // A forward begins: what was read before counts nothing. Without effect after Stop.
  void Restart();
  // The forward is over: nothing more is recorded, and operations cost nothing more.
  void Stop() { observer_.reset(); }
  // Buckets, each once.
  std::vector<int> order() const;

  void BeforeRead(int64_t begin, int64_t end) override;
  void AfterRead(int64_t /*begin*/, int64_t /*end*/) override {}

 private:
  const plan::ShardPlan& shards_;
  mutable std::mutex mutex_;
  std::vector<uint8_t> read_;  // By bucket.
  std::vector<int> order_;
  std::optional<StorageObserver> observer_;
};

}  // namespace dtrain
