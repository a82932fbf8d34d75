// Units of the weights of ZeRO stage 3 (EngineOptions::units) of which ranks may use different
// parts, as they do of a mixture of experts: every rank opens a unit as a whole, at the same place
// among its gathers, and learns at the same place of its backward that the unit has ended.
//
// It stands between the observer of reads and what gathers buckets. The first read inside a unit
// opens all of its buckets; they stay in use until weights outside of it are read, so reads within
// it are no news, however many a rank makes. plan::UnitOrder says what a rank opens and ends that
// reads nothing of a unit.
//
// A unit has ended when backward comes to what forward had done before it came to the unit:
// autograd takes nodes in the reverse of the order in which they were made, which their sequence
// numbers tell. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "runtime/plan/layout/shard_plan.h"
#include "runtime/plan/layout/unit_order.h"
#include "runtime/shard/storage_observer.h"

namespace dtrain {

class LedUnits final : public StorageObserver::Listener {
 public:
  class Buckets {
   public:
    virtual ~Buckets() = default;
    // Gathers what is not there and waits for it; it may be read until Done. `element` of the
    // layout is what is read.
    virtual void Use(plan::BucketSpan span, int64_t element) = 0;
    virtual void Done(plan::BucketSpan span) = 0;
  };

  // `units`: ascending (plan::WholeUnits). REQUIRES: the others outlive this object.
  LedUnits(const plan::ShardPlan& shards, absl::Span<const plan::FlatRange> units,
           Buckets& buckets);

  // `on_end(unit)` is called in backward, by the thread that reads, when no gradient of it can come
  // any more. It is not called for a unit that has not ended when backward is over. REQUIRES: no
  // pass is under way.
  void OnEnd(std::function<void(size_t unit)> on_end) { on_end_ = std::move(on_end); }

  // A pass starts; nothing of an earlier one is in use any more.
  void BeginPass(plan::UnitOrder::Pass pass);
  // Its forward is over.
  void BeginBackward();
  // It is over.
  void EndPass();

  void BeforeRead(int64_t begin, int64_t end) override;
  void AfterRead(int64_t begin, int64_t end) override;

 private:
  struct Unit {
    plan::FlatRange range;
    plan::BucketSpan span;
    int reads = 0;      // Operations under way.
    int postponed = 0;  // Calls of Done that wait until they are over.
    bool seen = false;  // In this pass.
  };
  // A moment among the nodes that a thread makes for backward: earlier nodes have lower numbers.
  struct Moment {
    uint64_t sequence = 0;
    uint64_t thread = 0;
  };
  struct Open {
    size_t unit = 0;
    Moment since;
  };

  template <typename Function>
  void ForEachPart(int64_t begin, int64_t end, Function function) const;
  static Moment Now();
  std::optional<Moment> MomentOfBackward() const;
  void Read(size_t unit);
  void ReadOther(plan::FlatRange range);
  void Enter(size_t unit);
  void Leave();
  void Come(int place);
  void Do(const std::vector<plan::UnitStep>& steps);
  void NoteEnds(std::optional<size_t> read);
  void End(size_t unit);

  const plan::ShardPlan& shards_;
  Buckets& buckets_;
  std::function<void(size_t unit)> on_end_;

  std::mutex mutex_;
  std::vector<Unit> units_;
  plan::UnitOrder order_;
  std::optional<size_t> present_;      // Its buckets are in use.
  std::vector<Open> open_;             // In the order of forward; those that have not ended.
  std::optional<Moment> backward_;     // When it began.
  std::vector<plan::UnitStep> steps_;  // Filled by one call.
};

}  // namespace dtrain
