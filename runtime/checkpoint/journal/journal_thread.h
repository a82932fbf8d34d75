// The thread that writes a rank's steps into the step journal, one after the other. For the thread
// that trains.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/threads/worker.h"
#include "checkpoint/journal/segment_writer.h"
#include "checkpoint/storage/storage.h"
#include "runtime/checkpoint/journal/after_steps.h"
#include "runtime/checkpoint/journal/journal_update.h"

namespace dtrain {

// Removes the journalled steps that the durable checkpoint `id` has made needless; an error is only
// logged.
void RemoveJournalBefore(checkpoint::Storage& storage, const checkpoint::StepId& id);

class JournalThread {
 public:
  // REQUIRES: `storage` outlives this object.
  explicit JournalThread(checkpoint::Storage& storage);
  JournalThread(const JournalThread&) = delete;
  JournalThread& operator=(const JournalThread&) = delete;
  // Steps that were handed over are written first.
  ~JournalThread() = default;

  // The steps from here on are of this segment. Forgets an earlier failure.
  void Begin(checkpoint::SegmentHeader header);

  // Both parts are asked for on the thread, which may wait for a GPU there. What they give stays
  // until at most one later step is left.
  struct Step {
    int64_t step = 0;
    LateUpdate update;
    LateAfter after;  // Null: nothing goes on from behind the step.
  };
  void Append(Step step);
  // Removes what the durable checkpoint `id` has made needless, behind the steps handed over. Does
  // nothing while the thread is so far behind that its queue is full; a later checkpoint does then.
  void RemoveBefore(const checkpoint::StepId& id);

  // Returns when at most `steps` of those handed over are not durable, or false at the deadline.
  bool WaitUntilLeft(int steps, Deadline deadline);
  // Returns when all that was handed over is done, removals too.
  void WaitUntilIdle();
  // The first failure since Begin. After it steps are dropped.
  absl::Status failure() const;

  struct Work {
    double seconds = 0;  // Writing took so long.
    uint64_t bytes = 0;
    int64_t steps = 0;
  };
  Work work() const;  // Since the start.

 private:
  void Write(const Step& step);
  // Writes it; `seconds`: how long that took, without waiting for a GPU.
  absl::Status Append(const Step& step, double& seconds);

  checkpoint::Storage& storage_;
  std::unique_ptr<checkpoint::SegmentWriter> segment_;  // The thread's own.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int left_ = 0;  // Steps that are not written yet.
  absl::Status failure_;
  Work work_;
  Worker worker_;  // Ends first.
};

}  // namespace dtrain
