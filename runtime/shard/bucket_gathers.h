// The gathers of ZeRO stage 3: brings whole buckets of weights into the addresses that the module's
// tensors have, by the way that fits the pass, and gives their memory back.
//
// LiveParameters says which bucket comes and goes when. Gathers are collectives. One that fails
// leaves anything in the weights, and status(), because no error can leave the operation that waits
// for it. Not thread-safe but for Abort; its owner locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/group.h"
#include "runtime/model/flat_parameters.h"
#include "runtime/plan/layout/gather_schedule.h"
#include "runtime/plan/layout/shard_plan.h"
#include "runtime/shard/gather_memory.h"
#include "runtime/shard/persistent_parameters.h"
#include "runtime/shard/quantized_gather.h"
#include "runtime/shard/secondary_shards.h"

namespace dtrain {

// How weights are gathered beside the plain way; each may be null.
struct GatherWays {
  std::unique_ptr<PersistentParameters> persistent;  // Weights that are never gathered.
  std::unique_ptr<SecondaryShards> secondary;        // A step's second and later gathers.
  // For forward, backward and evaluation. Weights lent whole to a program are exact.
  std::unique_ptr<QuantizedGather> quantized;
};

class BucketGathers {
 public:
  // REQUIRES: all outlive this object; the values of `flat` are reserved. `group`: of the memory
  // that weights are in. `live_max`: elements that may have memory at a time.
  BucketGathers(comm::Group& group, FlatParameters& flat, const plan::ShardPlan& shards,
                int64_t live_max, GatherWays ways, std::unique_ptr<GatherMemory> memory);
  ~BucketGathers();

  // The next gathers are `exact`, or come in int8 blocks if there is a way for that. Whether what
  // is live came the other way: then it is void, and no bucket is live any more.
  bool SetExact(bool exact);
  // Gathers `bucket`. Buckets that `schedule` does not call live lose their memory where the limit
  // needs it. Without memory the process ends.
  void Gather(int bucket, const plan::GatherSchedule& schedule);
  // Waits for its gather, if one is under way, and counts the time.
  void Await(int bucket);
  // Nothing reads the bucket any more: its memory goes.
  void Release(int bucket);
  // The shard changes: what was gathered is void. Memory is kept: it is filled again.
  void Invalidate();
  // First error of a gather since TakeStatus.
  const absl::Status& status() const { return status_; }
  absl::Status TakeStatus();

  // Collective. The shard has changed on every rank: brings up to date what is never gathered.
  absl::Status Refresh();
  // Whether the parameter flat.parameters()[index] is never gathered.
  bool is_persistent(size_t index) const {
    return ways_.persistent != nullptr && ways_.persistent->has(index);
  }
  // The training step that reports of the small groups name.
  void SetStep(int64_t step);
  // Memory that gathered weights take, or took and keep, with what the ways of gathering hold.
  int64_t bytes() const;
  // Seconds that operations waited for gathers since the last call.
  double TakeWaitedSeconds();
  // On a GPU with a second sharding: the group of it; else null.
  comm::DeviceGroup* small_group() const {
    return ways_.secondary != nullptr ? ways_.secondary->device_group() : nullptr;
  }
  // Ends what the small groups have under way. Any thread.
  void Abort(const std::string& reason);

 private:
  // Whether the present gathers take from the second sharding: it holds what came in blocks, if
  // anything does.
  bool has_secondary() const {
    return ways_.secondary != nullptr && (ways_.quantized == nullptr || is_quantized_);
  }
  // Whether the next gather of `bucket` goes over the small group alone.
  bool is_secondary(int bucket) const { return has_secondary() && ways_.secondary->has(bucket); }
  // Waits for what is under way; what is there must not be read any more.
  void CloseAll();
  absl::Status Open(int bucket, const plan::GatherSchedule& schedule);
  void Wait(int bucket);
  absl::StatusOr<comm::Work> Start(int bucket);
  absl::StatusOr<comm::Work> StartQuantized(int bucket);
  comm::Buffer WholeOf(int bucket) const;

  comm::Group& group_;
  FlatParameters& flat_;
  const plan::ShardPlan& shards_;
  const std::vector<std::string> names_;  // By bucket.
  const int64_t live_max_;
  const GatherWays ways_;
  const std::unique_ptr<GatherMemory> memory_;

  bool is_quantized_ = false;                     // Weights come in int8 blocks.
  std::vector<std::optional<comm::Work>> works_;  // By bucket: its gather, until waited for.
  std::vector<uint8_t> backed_;                   // By bucket: has memory, live or not.
  int64_t backed_elements_ = 0;
  int64_t waited_nanos_ = 0;
  absl::Status status_;
};

}  // namespace dtrain
