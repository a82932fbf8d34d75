// Copies a checkpoint to another storage so that a run loads it there: its files, verified while
// they are copied, the epoch records that lead to it, and its manifest last. A copy that was
// interrupted goes on where it ended. Where several machines hold the files, so many are copied at
// once, each by its own machine if it can.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/storage/storage.h"

namespace dtrain::checkpoint {

struct CopyResult {
  size_t files = 0;
  uint64_t bytes = 0;      // The size of all files together.
  size_t files_kept = 0;   // These were there already, and verify.
  size_t files_sent = 0;   // These came straight from the machines that hold them.
  bool was_there = false;  // The whole checkpoint was there.
  size_t epochs = 0;       // Records that were written.
};

// Called for each file when it is there, by one thread at a time.
using FileCopied = absl::FunctionRef<void(const ManifestFile& file, bool was_there)>;

// FailedPrecondition: `to` belongs to another run, or a run there would not resume from this
// checkpoint; nothing is written. AlreadyExists: another checkpoint has this name. InvalidArgument:
// a file of `from` is damaged; the message names file and block. ResourceExhausted: no room.
// Cancelled: another thread has set `gives_up`, which may be null.
absl::StatusOr<CopyResult> CopyCheckpoint(Storage& from, StepId id, Storage& to, FileCopied copied,
                                          const std::atomic<bool>* gives_up = nullptr);

}  // namespace dtrain::checkpoint
