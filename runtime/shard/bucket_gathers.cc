#include "runtime/shard/bucket_gathers.h"

#include <unistd.h>

#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "runtime/gradients/bucket_parts.h"

namespace dtrain {
namespace {

// The operation that waits would touch memory that it may not, and no error can leave it.
[[noreturn]] void EndWithoutMemory(const absl::Status& status) {
  DT_LOG(Error) << status.message();
  _exit(ExitCodeFor(status));
}

}  // namespace

BucketGathers::BucketGathers(comm::Group& group, FlatParameters& flat,
                             const plan::ShardPlan& shards, int64_t live_max, GatherWays ways,
                             std::unique_ptr<GatherMemory> memory)
    : group_(group),
      flat_(flat),
      shards_(shards),
      names_(BucketNames("weights of bucket", flat, shards)),
      live_max_(live_max),
      ways_(std::move(ways)),
      memory_(std::move(memory)),
      works_(shards.buckets().size()),
      backed_(shards.buckets().size(), 0) {}

BucketGathers::~BucketGathers() {
  for (size_t bucket = 0; bucket < works_.size(); ++bucket) {
    Wait(static_cast<int>(bucket));
  }
  if (ways_.secondary != nullptr) {
    ways_.secondary->Drain();  // Before the memory that it gathers to goes.
  }
}

bool BucketGathers::SetExact(bool exact) {
  const bool quantizes = ways_.quantized != nullptr && !exact;
  if (is_quantized_ == quantizes) {
    return false;
  }
  CloseAll();
  is_quantized_ = quantizes;
  return true;
}

void BucketGathers::CloseAll() {
  for (size_t index = 0; index < works_.size(); ++index) {
    const auto bucket = static_cast<int>(index);
    Wait(bucket);
    if (backed_[index] != 0) {
      status_.Update(memory_->Close(bucket));
    }
  }
}

void BucketGathers::Invalidate() {
  CloseAll();
  if (ways_.secondary != nullptr) {
    ways_.secondary->Invalidate();
  }
  if (ways_.quantized != nullptr) {
    ways_.quantized->Invalidate();
  }
}

absl::Status BucketGathers::TakeStatus() { return std::exchange(status_, absl::OkStatus()); }

absl::Status BucketGathers::Refresh() {
  return ways_.persistent != nullptr ? ways_.persistent->Refresh() : absl::OkStatus();
}

void BucketGathers::SetStep(int64_t step) {
  if (ways_.secondary != nullptr) {
    ways_.secondary->SetStep(step);
  }
}

int64_t BucketGathers::bytes() const {
  int64_t bytes = memory_->bytes();
  bytes += ways_.persistent != nullptr ? ways_.persistent->bytes() : 0;
  bytes += ways_.secondary != nullptr ? static_cast<int64_t>(ways_.secondary->bytes()) : 0;
  return bytes + (ways_.quantized != nullptr ? ways_.quantized->bytes() : 0);
}

double BucketGathers::TakeWaitedSeconds() {
  return static_cast<double>(std::exchange(waited_nanos_, 0)) * 1e-9 + memory_->TakeWaitedSeconds();
}

void BucketGathers::Abort(const std::string& reason) {
  if (ways_.secondary != nullptr) {
    ways_.secondary->Abort(reason);
  }
}

// Memory that an earlier pass left is given back where the limit needs it.
absl::Status BucketGathers::Open(int bucket, const plan::GatherSchedule& schedule) {
  const int64_t elements = shards_.buckets()[static_cast<size_t>(bucket)].elements();
  if (backed_[static_cast<size_t>(bucket)] == 0) {
    for (size_t other = 0; other < backed_.size(); ++other) {
      if (backed_elements_ + elements > live_max_ && backed_[other] != 0 &&
          !schedule.is_live(static_cast<int>(other))) {
        Release(static_cast<int>(other));
      }
    }
    backed_[static_cast<size_t>(bucket)] = 1;
    backed_elements_ += elements;
  }
  return memory_->Open(bucket);
}

comm::Buffer BucketGathers::WholeOf(int bucket) const {
  const plan::FlatRange range = shards_.buckets()[static_cast<size_t>(bucket)];
  const size_t width = DTypeBytes(flat_.dtype());
  return {flat_.value_bytes() + static_cast<size_t>(range.begin) * width,
          static_cast<size_t>(range.elements()) * width, flat_.dtype(), flat_.device().place()};
}

absl::StatusOr<comm::Work> BucketGathers::Start(int bucket) {
  const std::string& name = names_[static_cast<size_t>(bucket)];
  if (is_secondary(bucket)) {
    return ways_.secondary->Gather(bucket, WholeOf(bucket), name);
  }
  if (is_quantized_) {
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

absl::StatusOr<comm::Work> BucketGathers::StartQuantized(int bucket) {
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

void BucketGathers::Gather(int bucket, const plan::GatherSchedule& schedule) {
  if (const absl::Status open = Open(bucket, schedule); !open.ok()) {
    EndWithoutMemory(open);
  }
  if (!status_.ok()) {
    return;
  }
  comm::DeviceGroup* const by = is_secondary(bucket) ? small_group() : nullptr;
  auto work = Start(bucket);
  if (!work.ok()) {
    status_ = work.status();
    return;
  }
  works_[static_cast<size_t>(bucket)] = *std::move(work);
  status_.Update(memory_->Started(bucket, by));
}

void BucketGathers::Await(int bucket) {
  if (works_[static_cast<size_t>(bucket)].has_value()) {
    const int64_t start = Clock::Real().MonotonicNanos();
    Wait(bucket);
    waited_nanos_ += Clock::Real().MonotonicNanos() - start;
  }
}

void BucketGathers::Wait(int bucket) {
  std::optional<comm::Work>& work = works_[static_cast<size_t>(bucket)];
  if (!work.has_value()) {
    return;
  }
  status_.Update(memory_->Arrive(bucket, *std::exchange(work, std::nullopt)));
  if (is_quantized_) {
    ways_.quantized->Finish(bucket);
  }
  if (has_secondary() && !ways_.secondary->has(bucket)) {
    status_.Update(
        ways_.secondary->Keep(bucket, static_cast<const std::byte*>(WholeOf(bucket).data)));
  }
}

void BucketGathers::Release(int bucket) {
  if (backed_[static_cast<size_t>(bucket)] == 0) {
    return;  // Open gave it back, for what was planned before this.
  }
  Wait(bucket);
  status_.Update(memory_->Discard(bucket));
  backed_[static_cast<size_t>(bucket)] = 0;
  backed_elements_ -= shards_.buckets()[static_cast<size_t>(bucket)].elements();
}

}  // namespace dtrain
