// The weights of ZeRO stage 3: each rank keeps its shard, and gathers what its operations are about
// to read, bucket by bucket, into the addresses that the module's tensors have.
//
// This class hears what operations read, plan::GatherSchedule decides, and BucketGathers moves
// memory and data. Gathers are collectives, so every rank must read the same parameters in the same
// order, but for those inside units (led_units.h). A gather that fails leaves anything in the
// weights, and status(), because no error can leave the operation that waits for it. On a GPU
// operations wait in the stream's order, the host does not. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "comm/group.h"
#include "runtime/model/flat_parameters.h"
#include "runtime/plan/layout/gather_schedule.h"
#include "runtime/plan/layout/shard_plan.h"
#include "runtime/shard/bucket_gathers.h"
#include "runtime/shard/gather_memory.h"
#include "runtime/shard/led_units.h"
#include "runtime/shard/storage_observer.h"

namespace dtrain {

class LiveParameters final : public StorageObserver::Listener, private LedUnits::Buckets {
 public:
  // Collective. REQUIRES: all outlive this object; the values of `flat` are reserved. `group`: of
  // the memory that weights are in. `units`: what is gathered as a whole (plan::WholeUnits).
  static absl::StatusOr<std::unique_ptr<LiveParameters>> Create(
      comm::Group& group, FlatParameters& flat, const plan::ShardPlan& shards,
      const GatherLimits& limits, GatherWays ways, std::unique_ptr<GatherMemory> memory,
      absl::Span<const plan::FlatRange> units);
  ~LiveParameters() override;

  // The training step that reports of the small groups name; the world's group is the caller's.
  void SetStep(int64_t step);
  // A micro-batch or an evaluation batch starts.
  void BeginPass(plan::GatherSchedule::Pass pass);
  // Its forward is over; it is over. Collective where units are gathered of which this rank has
  // used nothing. Without units they do nothing.
  void BeginBackward();
  void EndPass();
  // `on_end(unit)`: a backward has come past that one of `units` (LedUnits::OnEnd).
  void OnUnitEnd(std::function<void(size_t unit)> on_end);
  // The reads of a step's passes, or of evaluations one after the other: the first element of each
  // read that was in other buckets than the one before, up to a limit. A read within a unit counts
  // as one of the unit.
  std::vector<int64_t> reads() const;
  // The shard changes: what was gathered is void. Gives and clears the first error since the last
  // call.
  absl::Status Invalidate();
  // Collective. The shard has changed on every rank: brings up to date what is never gathered.
  absl::Status Refresh();
  // First error of a gather since Invalidate.
  absl::Status status() const;
  // Collective. Runs `function` while all weights are live, whatever the limits say.
  absl::Status WithAll(absl::FunctionRef<void()> function);
  // Collective. Runs `function` while the parameter flat.parameters()[index] is live.
  absl::Status With(size_t index, absl::FunctionRef<void()> function);
  // Runs `function` in a pass of its own: what operations read in it is gathered on demand and
  // exact, as with the two above, and is on no record.
  absl::Status WithNone(absl::FunctionRef<void()> function);
  // Memory that gathered weights take, or took and keep, with what the ways of gathering hold.
  int64_t bytes() const;
  // Seconds that operations waited for gathers since the last call.
  double TakeWaitedSeconds();

  // On a GPU with a second sharding: the group of it; else null.
  comm::DeviceGroup* small_group() const { return gathers_.small_group(); }
  // Ends what the small groups have under way; the world's group is the caller's. Any thread.
  void Abort(const std::string& reason);

  void BeforeRead(int64_t begin, int64_t end) override;
  void AfterRead(int64_t begin, int64_t end) override;

 private:
  LiveParameters(comm::Group& group, FlatParameters& flat, const plan::ShardPlan& shards,
                 const GatherLimits& limits, GatherWays ways, std::unique_ptr<GatherMemory> memory);
  absl::Status WithSpan(plan::BucketSpan span, absl::FunctionRef<void()> function);
  StorageObserver::Listener& listener();
  void BeginPassLocked(plan::GatherSchedule::Pass pass);
  void Use(plan::BucketSpan span, int64_t element) override;
  void Done(plan::BucketSpan span) override;
  void Act();

  const plan::ShardPlan& shards_;
  mutable std::mutex mutex_;
  BucketGathers gathers_;
  plan::GatherSchedule schedule_;
  plan::GatherSchedule::Pass pass_ = plan::GatherSchedule::Pass::kTraining;
  std::vector<plan::GatherAction> actions_;
  std::vector<int64_t> reads_;
  plan::BucketSpan last_read_;       // The last of these reads.
  std::unique_ptr<LedUnits> units_;  // Null: there are none.
  std::optional<StorageObserver> observer_;
};

}  // namespace dtrain
