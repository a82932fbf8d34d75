#include "runtime/shard/live_parameters.h"

#include <cstddef>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "base/status.h"

namespace dtrain {
namespace {

constexpr size_t kReadsMax = 65536;  // On record for an error.

std::vector<int64_t> BucketSizes(const plan::ShardPlan& shards) {
  std::vector<int64_t> sizes;
  for (const plan::FlatRange& bucket : shards.buckets()) {
    sizes.push_back(bucket.elements());
  }
  return sizes;
}

}  // namespace

LiveParameters::LiveParameters(comm::Group& group, FlatParameters& flat,
                               const plan::ShardPlan& shards, const GatherLimits& limits,
                               GatherWays ways, std::unique_ptr<GatherMemory> memory)
    : shards_(shards),
      gathers_(group, flat, shards, limits.live_max, std::move(ways), std::move(memory)),
      schedule_(BucketSizes(shards), limits) {}

absl::StatusOr<std::unique_ptr<LiveParameters>> LiveParameters::Create(
    comm::Group& group, FlatParameters& flat, const plan::ShardPlan& shards,
    const GatherLimits& limits, GatherWays ways, std::unique_ptr<GatherMemory> memory,
    absl::Span<const plan::FlatRange> units) {
  auto live = std::unique_ptr<LiveParameters>(
      new LiveParameters(group, flat, shards, limits, std::move(ways), std::move(memory)));
  if (!units.empty()) {
    live->units_ =
        std::make_unique<LedUnits>(shards, units, static_cast<LedUnits::Buckets&>(*live));
  }
  live->BeginPass(plan::GatherSchedule::Pass::kTraining);
  DT_RETURN_IF_ERROR(live->Refresh());
  live->observer_.emplace(flat.values(), live->listener());
  return live;
}

StorageObserver::Listener& LiveParameters::listener() {
  return units_ != nullptr ? static_cast<StorageObserver::Listener&>(*units_) : *this;
}

LiveParameters::~LiveParameters() { observer_.reset(); }

void LiveParameters::SetStep(int64_t step) {
  {
    const std::lock_guard lock(mutex_);
    reads_.clear();
    last_read_ = {};
  }
  gathers_.SetStep(step);
}

void LiveParameters::BeginPass(plan::GatherSchedule::Pass pass) {
  if (units_ != nullptr) {
    units_->BeginPass(pass);
  }
  const std::lock_guard lock(mutex_);
  BeginPassLocked(pass);
}

void LiveParameters::BeginBackward() {
  if (units_ != nullptr) {
    units_->BeginBackward();
  }
}

void LiveParameters::EndPass() {
  if (units_ != nullptr) {
    units_->EndPass();
  }
}

void LiveParameters::OnUnitEnd(std::function<void(size_t unit)> on_end) {
  if (units_ != nullptr) {
    units_->OnEnd(std::move(on_end));
  }
}

std::vector<int64_t> LiveParameters::reads() const {
  const std::lock_guard lock(mutex_);
  return reads_;
}

void LiveParameters::BeginPassLocked(plan::GatherSchedule::Pass pass) {
  if (pass != pass_) {
    reads_.clear();
    last_read_ = {};
  }
  pass_ = pass;
  schedule_.Begin(pass);
}

absl::Status LiveParameters::Invalidate() {
  if (units_ != nullptr) {
    units_->BeginPass(plan::GatherSchedule::Pass::kTraining);  // No unit is in use any more.
  }
  const std::lock_guard lock(mutex_);
  gathers_.Invalidate();
  schedule_.Invalidate();
  BeginPassLocked(plan::GatherSchedule::Pass::kTraining);
  return gathers_.TakeStatus();
}

absl::Status LiveParameters::Refresh() { return gathers_.Refresh(); }

absl::Status LiveParameters::status() const {
  const std::lock_guard lock(mutex_);
  return gathers_.status();
}

int64_t LiveParameters::bytes() const {
  const std::lock_guard lock(mutex_);
  return gathers_.bytes();
}

double LiveParameters::TakeWaitedSeconds() {
  const std::lock_guard lock(mutex_);
  return gathers_.TakeWaitedSeconds();
}

absl::Status LiveParameters::WithAll(absl::FunctionRef<void()> function) {
  return WithSpan({0, static_cast<int>(shards_.buckets().size())}, function);
}

absl::Status LiveParameters::With(size_t index, absl::FunctionRef<void()> function) {
  return WithSpan(gathers_.is_persistent(index) ? plan::BucketSpan{} : shards_.spans()[index],
                  function);
}

absl::Status LiveParameters::WithNone(absl::FunctionRef<void()> function) {
  return WithSpan({}, function);
}

absl::Status LiveParameters::WithSpan(plan::BucketSpan span, absl::FunctionRef<void()> function) {
  BeginPass(plan::GatherSchedule::Pass::kOther);
  Use(span, 0);
  {
    const absl::Cleanup done = [&] {  // `function` may throw, on one rank alone.
      Done(span);
      BeginPass(plan::GatherSchedule::Pass::kTraining);
    };
    if (status().ok()) {
      function();
    }
  }
  return status();
}

void LiveParameters::Abort(const std::string& reason) { gathers_.Abort(reason); }

void LiveParameters::BeforeRead(int64_t begin, int64_t end) {
  Use(shards_.BucketsOf({begin, end}), begin);
}
void LiveParameters::AfterRead(int64_t begin, int64_t end) {
  Done(shards_.BucketsOf({begin, end}));
}

void LiveParameters::Use(plan::BucketSpan span, int64_t element) {
  const std::lock_guard lock(mutex_);
  if (span != last_read_ && reads_.size() < kReadsMax) {
    reads_.push_back(element);
    last_read_ = span;
  }
  // Where a pass of the other kind begins, nothing is in use.
  if (gathers_.SetExact(pass_ == plan::GatherSchedule::Pass::kOther)) {
    schedule_.Invalidate();
  }
  for (int bucket = span.first; bucket < span.last; ++bucket) {
    schedule_.Use(bucket, actions_);
  }
  Act();
  for (int bucket = span.first; bucket < span.last; ++bucket) {
    gathers_.Await(bucket);
  }
}

void LiveParameters::Done(plan::BucketSpan span) {
  const std::lock_guard lock(mutex_);
  for (int bucket = span.first; bucket < span.last; ++bucket) {
    schedule_.Done(bucket, actions_);
  }
  Act();
}

void LiveParameters::Act() {
  for (const plan::GatherAction& action : actions_) {
    switch (action.kind) {
      case plan::GatherAction::Kind::kGather:
        gathers_.Gather(action.bucket, schedule_);
        break;
      case plan::GatherAction::Kind::kRelease:
        gathers_.Release(action.bucket);
        break;
    }
  }
  actions_.clear();
}

}  // namespace dtrain
