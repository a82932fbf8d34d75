#include "runtime/shard/live_parameters.h"

#include <unistd.h>

#include <cstddef>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "runtime/gradients/bucket_parts.h"

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

// The operation that waits would touch memory that it may not, and no error can leave it.
[[noreturn]] void EndWithoutMemory(const absl::Status& status) {
  DT_LOG(Error) << status.message();
  _exit(ExitCodeFor(status));
}

}  // namespace

LiveParameters::LiveParameters(comm::Group& group, FlatParameters& flat,
                               const plan::ShardPlan& shards, const GatherLimits& limits,
                               GatherWays ways, std::unique_ptr<GatherMemory> memory)
    : group_(group),
      flat_(flat),
      shards_(shards),
      names_(BucketNames("weights of bucket", flat, shards)),
      live_max_(limits.live_max),
      ways_(std::move(ways)),
      memory_(std::move(memory)),
      schedule_(BucketSizes(shards), limits),
      works_(shards.buckets().size()),
      backed_(shards.buckets().size(), 0) {}

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

LiveParameters::~LiveParameters() {
  observer_.reset();
  for (size_t bucket = 0; bucket < works_.size(); ++bucket) {
    Wait(static_cast<int>(bucket));
  }
  if (ways_.secondary != nullptr) {
    ways_.secondary->Drain();  // Before the memory that it gathers to goes.
  }
}

void LiveParameters::SetStep(int64_t step) {
  {
    const std::lock_guard lock(mutex_);
    reads_.clear();
    last_read_ = {};
  }
  if (ways_.secondary != nullptr) {
    ways_.secondary->SetStep(step);
  }
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

void LiveParameters::CloseAll() {
  for (size_t index = 0; index < works_.size(); ++index) {
    const auto bucket = static_cast<int>(index);
    Wait(bucket);
    if (backed_[index] != 0) {
      status_.Update(memory_->Close(bucket));
    }
  }
  schedule_.Invalidate();
}

absl::Status LiveParameters::Invalidate() {
  if (units_ != nullptr) {
    units_->BeginPass(plan::GatherSchedule::Pass::kTraining);  // No unit is in use any more.
  }
  const std::lock_guard lock(mutex_);
  CloseAll();
  if (ways_.secondary != nullptr) {
    ways_.secondary->Invalidate();
  }
  if (ways_.quantized != nullptr) {
    ways_.quantized->Invalidate();
  }
  BeginPassLocked(plan::GatherSchedule::Pass::kTraining);
  return std::exchange(status_, absl::OkStatus());
}

absl::Status LiveParameters::Refresh() {
  return ways_.persistent != nullptr ? ways_.persistent->Refresh() : absl::OkStatus();
}

absl::Status LiveParameters::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

int64_t LiveParameters::bytes() const {
  const std::lock_guard lock(mutex_);
  int64_t bytes = memory_->bytes();
  bytes += ways_.persistent != nullptr ? ways_.persistent->bytes() : 0;
  bytes += ways_.secondary != nullptr ? static_cast<int64_t>(ways_.secondary->bytes()) : 0;
  return bytes + (ways_.quantized != nullptr ? ways_.quantized->bytes() : 0);
}

double LiveParameters::TakeWaitedSeconds() {
  const std::lock_guard lock(mutex_);
  return static_cast<double>(std::exchange(waited_nanos_, 0)) * 1e-9 + memory_->TakeWaitedSeconds();
}

absl::Status LiveParameters::WithAll(absl::FunctionRef<void()> function) {
  return WithSpan({0, static_cast<int>(works_.size())}, function);
}

absl::Status LiveParameters::With(size_t index, absl::FunctionRef<void()> function) {
  const bool persistent = ways_.persistent != nullptr && ways_.persistent->has(index);
  return WithSpan(persistent ? plan::BucketSpan{} : shards_.spans()[index], function);
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

void LiveParameters::Abort(const std::string& reason) {
  if (ways_.secondary != nullptr) {
    ways_.secondary->Abort(reason);
  }
}

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
  if (live_is_quantized_ != quantizes()) {  // A pass of the other kind begins: nothing is in use.
    CloseAll();
    live_is_quantized_ = quantizes();
  }
  for (int bucket = span.first; bucket < span.last; ++bucket) {
    schedule_.Use(bucket, actions_);
  }
  Act();
  for (int bucket = span.first; bucket < span.last; ++bucket) {
    if (works_[static_cast<size_t>(bucket)].has_value()) {
      const int64_t start = Clock::Real().MonotonicNanos();
      Wait(bucket);
      waited_nanos_ += Clock::Real().MonotonicNanos() - start;
    }
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
        Gather(action.bucket);
        break;
      case plan::GatherAction::Kind::kRelease:
        Release(action.bucket);
        break;
    }
  }
  actions_.clear();
}

// Memory that an earlier pass left is given back where the limit needs it.
absl::Status LiveParameters::Open(int bucket) {
  const int64_t elements = shards_.buckets()[static_cast<size_t>(bucket)].elements();
  if (backed_[static_cast<size_t>(bucket)] == 0) {
    for (size_t other = 0; other < backed_.size(); ++other) {
      if (backed_elements_ + elements > live_max_ && backed_[other] != 0 &&
          !schedule_.is_live(static_cast<int>(other))) {
        Release(static_cast<int>(other));
      }
    }
    backed_[static_cast<size_t>(bucket)] = 1;
    backed_elements_ += elements;
  }
  return memory_->Open(bucket);
}

comm::Buffer LiveParameters::WholeOf(int bucket) const {
  const plan::FlatRange range = shards_.buckets()[static_cast<size_t>(bucket)];
  const size_t width = DTypeBytes(flat_.dtype());
  return {flat_.value_bytes() + static_cast<size_t>(range.begin) * width,
          static_cast<size_t>(range.elements()) * width, flat_.dtype(), flat_.device().place()};
}

absl::StatusOr<comm::Work> LiveParameters::StartGather(int bucket) {
  const std::string& name = names_[static_cast<size_t>(bucket)];
  if (is_secondary(bucket)) {
    return ways_.secondary->Gather(bucket, WholeOf(bucket), name);
  }
  if (live_is_quantized_) {
    return StartQuantized(bucket);
  }
  const size_t width = DTypeBytes(flat_.dtype());
  const plan::OwnedRange own = shards_.part(bucket, group_.rank());
  DT_ASSIGN_OR_RETURN(const std::byte* const share, memory_->Share(bucket));
  return group_.AllGather(
      {const_cast<std::byte*>(share),  // Only read.
       static_cast<size_t>(own.flat.elements()) * width, flat_.dtype(), flat_.device().place()},
      WholeOf(bucket), {.name = name});
}

absl::StatusOr<comm::Work> LiveParameters::StartQuantized(int bucket) {
  QuantizedGather& quantized = *ways_.quantized;
  while (quantized.full()) {
    Wait(quantized.oldest());
  }
  const std::byte* share = nullptr;
  if (!quantized.is_packed(bucket)) {
    DT_ASSIGN_OR_RETURN(share, memory_->Share(bucket));
  }
  const comm::Buffer whole = WholeOf(bucket);
  return quantized.Start(bucket, share, {whole.data, whole.dtype},
                         names_[static_cast<size_t>(bucket)]);
}

void LiveParameters::Gather(int bucket) {
  if (const absl::Status open = Open(bucket); !open.ok()) {
    EndWithoutMemory(open);
  }
  if (!status_.ok()) {
    return;
  }
  comm::DeviceGroup* const by = is_secondary(bucket) ? small_group() : nullptr;
  auto work = StartGather(bucket);
  if (!work.ok()) {
    status_ = work.status();
    return;
  }
  works_[static_cast<size_t>(bucket)] = *std::move(work);
  status_.Update(memory_->Started(bucket, by));
}

void LiveParameters::Wait(int bucket) {
  std::optional<comm::Work>& work = works_[static_cast<size_t>(bucket)];
  if (!work.has_value()) {
    return;
  }
  status_.Update(memory_->Arrive(bucket, *std::exchange(work, std::nullopt)));
  if (live_is_quantized_) {
    ways_.quantized->Finish(bucket);
  }
  if (has_secondary() && !ways_.secondary->has(bucket)) {
    status_.Update(
        ways_.secondary->Keep(bucket, static_cast<const std::byte*>(WholeOf(bucket).data)));
  }
}

void LiveParameters::Release(int bucket) {
  if (backed_[static_cast<size_t>(bucket)] == 0) {
    return;  // Open gave it back, for what was planned before this.
  }
  Wait(bucket);
  status_.Update(memory_->Discard(bucket));
  backed_[static_cast<size_t>(bucket)] = 0;
  backed_elements_ -= shards_.buckets()[static_cast<size_t>(bucket)].elements();
}

}  // namespace dtrain
