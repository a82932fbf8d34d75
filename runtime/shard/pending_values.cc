#include "runtime/shard/pending_values.h"

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"

namespace dtrain {
namespace {

constexpr timespec kPoll = {.tv_sec = 0, .tv_nsec = 50'000};  // Of code that stands in a fault.

}  // namespace

PendingValues::PendingValues(FlatParameters& flat, const plan::ShardPlan& shards)
    : flat_(flat),
      shards_(shards),
      width_(static_cast<int64_t>(DTypeBytes(flat.dtype()))),
      page_(sysconf(_SC_PAGESIZE)),
      process_(getpid()),
      works_(shards.buckets().size()),
      closed_(shards.buckets().size(), 0),
      fault_(reinterpret_cast<const std::byte*>(flat.value_view()->data()),
             flat.value_view()->bytes(), *this) {}

PendingValues::~PendingValues() { Settle().IgnoreError(); }

absl::Status PendingValues::Expect(std::vector<comm::Work> works) {
  DT_RETURN_IF_ERROR(Settle());
  const std::lock_guard lock(mutex_);
  works_ = std::move(works);
  unexplained_ = {};
  if (!fault_.active()) {  // What is closed would end the process.
    absl::Status first_error;
    for (const comm::Work& work : works_) {
      first_error.Update(work.Wait());
    }
    return first_error;
  }
  for (size_t i = 0; i < works_.size(); ++i) {
    if (works_[i].Done()) {
      status_.Update(works_[i].Wait());
    } else {
      closed_[i] = 1;
      ++closed_count_;
    }
  }
  if (closed_count_ == 0) {
    return std::exchange(status_, absl::OkStatus());
  }
  observer_.emplace(flat_.values(), *this);
  return Close();
}

absl::Status PendingValues::Close() {
  for (int bucket = 0; bucket < static_cast<int>(closed_.size()); ++bucket) {
    if (!is_closed(bucket)) {
      continue;
    }
    plan::FlatRange pages = PagesOf(bucket);
    while (bucket + 1 < static_cast<int>(closed_.size()) && is_closed(bucket + 1)) {
      pages.end = PagesOf(++bucket).end;
    }
    DT_RETURN_IF_ERROR(Protect(pages, PROT_NONE));
  }
  return absl::OkStatus();
}

absl::Status PendingValues::Settle() {
  const std::lock_guard lock(mutex_);
  Bring({0, static_cast<int>(closed_.size())});
  observer_.reset();
  return std::exchange(status_, absl::OkStatus());
}

absl::Status PendingValues::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

double PendingValues::TakeWaitedSeconds() {
  const std::lock_guard lock(mutex_);
  return static_cast<double>(std::exchange(waited_nanos_, 0)) * 1e-9;
}

// Before the lock: a thread of the process that forked may have held it, and is not here to let go.
void PendingValues::EndIfForked() const {
  if (is_forked() && closed_count_ > 0) {
    MemoryFault::SayAndExit(
        {"error: a process that was forked while weights were being gathered "
         "(zero_optimization.overlap_param_gather) reads them, and nobody brings them there; call "
         "fork inside Engine::WithParameters, or set the key to false"},
        kExitUsage);
  }
}

void PendingValues::BeforeRead(int64_t begin, int64_t end) {
  if (is_forked()) {
    EndIfForked();
    return;  // All is there.
  }
  const std::lock_guard lock(mutex_);
  if (closed_count_ > 0) {
    Bring(BucketsAt(begin * width_, end * width_));
  }
  if (closed_count_ == 0) {
    observer_.reset();  // This operation's callbacks are over when they are; this object stays.
  }
}

void PendingValues::Bring(plan::BucketSpan span) {
  if (closed_count_ == 0) {
    return;
  }
  const int64_t start = Clock::Real().MonotonicNanos();
  for (int bucket = span.first; bucket < span.last; ++bucket) {
    if (is_closed(bucket)) {
      status_.Update(works_[static_cast<size_t>(bucket)].Wait());
      Open(bucket);
    }
  }
  waited_nanos_ += Clock::Real().MonotonicNanos() - start;
}

// The thread holds no lock of the engine's or the group's: neither touches this mapping while it
// does. It polls, because Work::Wait may do the work itself, which a small stack has no room for.
bool PendingValues::OnFault(const std::byte* at) {
  EndIfForked();
  const std::lock_guard lock(mutex_);
  const int64_t byte = at - reinterpret_cast<const std::byte*>(flat_.value_view()->data());
  const plan::BucketSpan span = BucketsAt(byte, byte + 1);
  bool opened = false;
  for (int bucket = span.first; bucket < span.last; ++bucket) {
    if (!is_closed(bucket)) {
      continue;  // Another thread has brought it.
    }
    const comm::Work& work = works_[static_cast<size_t>(bucket)];
    while (!work.Done()) {
      nanosleep(&kPoll, nullptr);
    }
    if (const absl::Status status = work.Wait(); !status.ok()) {
      MemoryFault::SayAndExit({"error: weights were read that did not come: ", status.message()},
                              ExitCodeFor(status));
    }
    Open(bucket);
    opened = true;
  }
  // Brought by another thread in between, but not twice.
  const UnexplainedFault fault{pthread_self(), at};
  return opened || !(std::exchange(unexplained_, fault) == fault);
}

plan::FlatRange PendingValues::PagesOf(int bucket) const {
  const plan::FlatRange range = shards_.buckets()[static_cast<size_t>(bucket)];
  return {range.begin * width_ / page_ * page_, (range.end * width_ + page_ - 1) / page_ * page_};
}

plan::BucketSpan PendingValues::BucketsAt(int64_t begin_byte, int64_t end_byte) const {
  const int64_t begin = begin_byte / page_ * page_;
  const int64_t end = (end_byte + page_ - 1) / page_ * page_;
  // Behind the last element a page of its may go on.
  const int64_t last = shards_.padded_elements();
  return shards_.BucketsOf(
      {std::min(begin / width_, last - 1), std::min((end + width_ - 1) / width_, last)});
}

void PendingValues::Open(int bucket) {
  closed_[static_cast<size_t>(bucket)] = 0;
  plan::FlatRange pages = PagesOf(bucket);
  for (int before = bucket - 1; before >= 0 && PagesOf(before).end > pages.begin; --before) {
    if (is_closed(before)) {
      pages.begin = PagesOf(before).end;
    }
  }
  const auto count = static_cast<int>(closed_.size());
  for (int after = bucket + 1; after < count && PagesOf(after).begin < pages.end; ++after) {
    if (is_closed(after)) {
      pages.end = PagesOf(after).begin;
    }
  }
  if (pages.begin < pages.end) {
    DT_CHECK_OK(Protect(pages, PROT_READ | PROT_WRITE));  // What may be read could not be.
  }
  --closed_count_;  // Last: a process that is forked meanwhile finds its pages closed.
}

absl::Status PendingValues::Protect(plan::FlatRange bytes, int protection) {
  char* const begin = flat_.value_view()->data() + bytes.begin;
  if (mprotect(begin, static_cast<size_t>(bytes.elements()), protection) != 0) {
    return ErrnoStatus(
        errno, absl::StrFormat("protect %d bytes of weights on their way (vm.max_map_count?)",
                               bytes.elements()));
  }
  return absl::OkStatus();
}

}  // namespace dtrain
