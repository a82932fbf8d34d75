// Weights that are still being gathered when a step ends, and nobody who reads them too early: what
// ZeRO stages 1 and 2 need to gather during the next forward.
//
// Pages of a bucket on its way are closed in the module's mapping of the values; collectives use
// the other one. An operation that is about to read them (storage_observer.h) waits for its buckets
// alone. Whatever else touches them (data_ptr, an accessor, a kernel of the program's own) stands
// in a fault until they are there (memory_fault.h). A system call gets EFAULT. Once all are there,
// nothing listens any more: operations cost what they cost without.
// After a gather that failed operations read anything, because no error can leave them: status()
// has it, and the step must fail; other code ends the process with the error's line. Thread-safe.
#pragma once

#include <pthread.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "comm/work.h"
#include "runtime/memory/memory_fault.h"
#include "runtime/model/flat_parameters.h"
#include "runtime/plan/layout/shard_plan.h"
#include "runtime/shard/storage_observer.h"

namespace dtrain {

class PendingValues final : public StorageObserver::Listener, private MemoryFault::Listener {
 public:
  // REQUIRES: both outlive this object; the values of `flat` are guarded.
  PendingValues(FlatParameters& flat, const plan::ShardPlan& shards);
  // Waits for what is on its way.
  ~PendingValues() override;

  // `works[b]` brings bucket b. Returns at once; Settle it first when something is on its way.
  // REQUIRES: no operation on the values is under way.
  absl::Status Expect(std::vector<comm::Work> works);
  // Until all is there. Gives and clears the first error since the last call.
  absl::Status Settle();
  // That error, before it is cleared.
  absl::Status status() const;
  // Seconds that operations and Settle waited since the last call.
  double TakeWaitedSeconds();

  void BeforeRead(int64_t begin, int64_t end) override;
  void AfterRead(int64_t /*begin*/, int64_t /*end*/) override {}

 private:
  bool OnFault(const std::byte* at) override;
  bool is_forked() const { return getpid() != process_; }
  void EndIfForked() const;
  // Bytes of the module's mapping: the pages that hold a part of `bucket`.
  plan::FlatRange PagesOf(int bucket) const;
  // The buckets whose pages hold a byte of the pages of [begin, end).
  plan::BucketSpan BucketsAt(int64_t begin_byte, int64_t end_byte) const;
  bool is_closed(int bucket) const { return closed_[static_cast<size_t>(bucket)] != 0; }
  absl::Status Close();
  void Bring(plan::BucketSpan span);
  // Opens the pages of a closed bucket, but for those that another closed one has a part of.
  void Open(int bucket);
  absl::Status Protect(plan::FlatRange bytes, int protection);

  // Of a page that was open when its fault came here.
  struct UnexplainedFault {
    pthread_t thread{};
    const std::byte* at = nullptr;
    bool operator==(const UnexplainedFault&) const = default;
  };

  FlatParameters& flat_;
  const plan::ShardPlan& shards_;
  const int64_t width_;  // Bytes of an element.
  const int64_t page_;
  const pid_t process_;

  mutable std::mutex mutex_;
  std::vector<comm::Work> works_;         // By bucket.
  std::vector<uint8_t> closed_;           // By bucket: its pages are.
  std::atomic<size_t> closed_count_ = 0;  // Changed under the lock; a forked process has none.
  UnexplainedFault unexplained_;          // The last since Expect.
  int64_t waited_nanos_ = 0;
  absl::Status status_;
  std::optional<StorageObserver> observer_;  // While something is closed.
  const MemoryFault fault_;
};

}  // namespace dtrain
