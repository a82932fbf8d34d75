// Writer saves a snapshot so that it appears whole or not at all, whatever fails.
//
// One writer a rank and run attempt; one Save at a time, from any one thread. All ranks call Save
// for the same steps in the same order. A failed save never harms an earlier checkpoint and leaves
// training free to go on.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/threads/worker.h"
#include "checkpoint/commit/epoch.h"
#include "checkpoint/commit/retention.h"
#include "checkpoint/exchange.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/state_source.h"
#include "checkpoint/storage/storage.h"

namespace dtrain::checkpoint {

// The event that a checkpoint now survives a crash.
struct DurableEvent {
  StepId id;
  std::string path;  // Path in the form for people.
  uint64_t bytes = 0;
  double seconds = 0;
};

struct WriterOptions {
  EpochRecord epoch;                          // This attempt's record, the same on all ranks.
  Retention keep;                             // Which verified checkpoints stay.
  uint64_t shard_bytes_max = 50'000'000'000;  // Limit on one file in model/.
  bool verify_after_write = false;            // Re-read from the medium before the commit.
  absl::Duration exchange_timeout = absl::Minutes(10);  // Time for one gather or broadcast.
  std::function<void(const DurableEvent&)> on_durable;  // Called on rank 0 after the commit.
  // Old checkpoints are removed by a thread of rank 0's own after Save has returned, since those
  // that stay are read back whole before. The next Save waits until it has ended.
  bool collect_beside = false;
  // The checkpoints that others read now, and that stay therefore. Called on rank 0, by the thread
  // that removes.
  std::function<std::set<StepId>()> in_use;
  // Set when the job is about to end, so that nothing is removed behind a commit and a removal that
  // still reads is given up: whole checkpoints are read back before. The next attempt removes what
  // is old. May be null. REQUIRES: outlives the writer.
  const std::atomic<bool>* leaves_old = nullptr;
};

enum class SaveOutcome {
  kCommitted,
  kAlreadyCommitted,  // This attempt had saved this step before; nothing was written.
  kAbandoned,         // `status` says file and error; the last good checkpoint stays.
  kFenced,            // A newer attempt has begun: this process must end (status: Aborted).
  kUnknown,  // The ranks lost touch or the commit's own reply was lost; nothing was removed.
};

struct SaveReport {
  SaveOutcome outcome = SaveOutcome::kAbandoned;
  absl::Status status;  // OK for the first two.
  StepId id;
  uint64_t bytes = 0;  // Size of all ranks' files, on every rank.
  double seconds = 0;

  bool durable() const {
    return outcome == SaveOutcome::kCommitted || outcome == SaveOutcome::kAlreadyCommitted;
  }
};

class Writer {
 public:
  // REQUIRES: `storage` outlives the writer.
  Writer(Storage& storage, WriterOptions options);

  // Blocks until the checkpoint is committed or given up. Rank 0 removes old checkpoints and
  // remains of ended saves after each commit (see collect_beside and leaves_old). If that failed,
  // it tries again before it writes, because a nearly full disk would have no room for the next
  // commit; where the job is about to end, only if that is so. Errors of it are logged, not
  // returned.
  SaveReport Save(int64_t step, StateSource& source, Exchange& exchange);

  // The newest checkpoint of this attempt, else the one it resumed from.
  std::optional<StepId> last_durable() const { return last_; }

 private:
  // Cancelled: `gives_up`, which may be null, was set.
  absl::Status CollectOld(StepId current, const std::atomic<bool>* gives_up);
  bool IsEnding() const { return options_.leaves_old != nullptr && *options_.leaves_old; }
  // Whether a save like the last needs no old checkpoint to be removed before.
  bool HasRoom();
  // Removes what the durable checkpoint `current` has made old, now or beside.
  void CollectAfter(StepId current);
  // Returns when no thread collects.
  void AwaitCollector();

  Storage& storage_;
  const WriterOptions options_;
  std::optional<StepId> last_;
  uint64_t last_bytes_ = 0;  // The bytes of this writer's last durable save; 0: none yet.
  // Checkpoints that were read back whole, or were known to be good from the start.
  std::set<StepId> verified_;
  bool is_collected_ = false;  // Nothing is left to remove after the last commit.
  // Null until something is collected beside. While it does, it alone uses the two above. Ends
  // first.
  std::unique_ptr<Worker> collector_;
};

}  // namespace dtrain::checkpoint
