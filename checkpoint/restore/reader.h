// Finds and reads checkpoints.
//
// FindLatest follows the lineage of run attempts and takes the newest checkpoint whose every hash
// verifies; each one it rejects is logged with file and reason. Every block read is checked against
// its CRC, so a caller that reads every block needs no other check (tensor_reads.h,
// restore_agreement.h). A Checkpoint is used by one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/numeric/dtype.h"
#include "checkpoint/commit/epoch.h"
#include "checkpoint/exchange.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/restore/block_set.h"
#include "checkpoint/restore/verify.h"
#include "checkpoint/storage/storage.h"

namespace dtrain::checkpoint {

class Checkpoint {
 public:
  // NotFound: no such commit. InvalidArgument: damaged; the message names the file and what is
  // wrong.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(Storage& storage, StepId id,
                                                          Verify verify);

  const Manifest& manifest() const { return manifest_; }
  std::string DisplayName() const;

  // Names, dtypes and shapes of the tensors in model/, over all shards.
  std::vector<TensorEntry> ModelTensors() const;
  // One of them; null: there is none of this name.
  const TensorEntry* FindModelEntry(const std::string& name) const;

  // FailedPrecondition unless the checkpoint was written with this layout: another model cannot use
  // state/.
  absl::Status CheckLayout(absl::string_view layout_hash) const;
  std::vector<TensorEntry> StateTensors(int rank) const;
  // A file of model/ beside the weights ("config.json").
  absl::StatusOr<std::string> ReadModelFile(const std::string& name);

  // Where a tensor of model/, or of state/rank-R, lies. InvalidArgument when its dtype or shape is
  // not as `expected`; NotFound names it.
  struct Place {
    size_t file = 0;      // Index into manifest().files.
    uint64_t offset = 0;  // From the start of the file.
    uint64_t bytes = 0;
  };
  absl::StatusOr<Place> FindModelTensor(const TensorSpec& expected) const;
  absl::StatusOr<Place> FindStateTensor(int rank, const TensorSpec& expected) const;

  Storage& storage() const { return storage_; }
  // A file's path in the storage.
  std::string PathOf(size_t file) const;
  // Whether the file is of tensors. If not, it has no header.
  bool HoldsTensors(size_t file) const;
  // The bytes of a file of tensors before them, by the manifest.
  uint64_t HeaderBytes(size_t file) const { return data_begins_[file]; }
  // The number of a file's first block among those of all files, which are numbered in the
  // manifest's order; first_block(manifest().files.size()) is the number of blocks.
  uint64_t first_block(size_t file) const { return first_blocks_[file]; }
  // Compares the header of a file of tensors with the manifest. False: `begin`, of the file's first
  // bytes, does not hold the whole header, so that CheckIndexOf has to read it.
  absl::StatusOr<bool> CheckHeader(size_t file, absl::Span<const std::byte> begin) const;
  absl::Status CheckIndexOf(size_t file) const;
  // Tells the storage that so many bytes of the files will be read soon, those without tensors
  // first. Does nothing where the system reads ahead by itself.
  void ReadAhead(uint64_t bytes_max) const;

  // The blocks that were read and were whole.
  const BlockSet& seen() const { return seen_; }
  void AddSeen(uint64_t block) { seen_.Add(block); }
  // The first error by which the files differed from the manifest or could not be read, as opposed
  // to a wrong request. Not OK: another checkpoint is to be used.
  const absl::Status& damage() const { return damage_; }
  // Keeps the first such error, and returns `status`.
  absl::Status NoteDamage(const absl::Status& status);

 private:
  Checkpoint(Storage& storage, Manifest manifest);
  absl::StatusOr<Place> Find(const std::string& key, const TensorSpec& expected) const;

  Storage& storage_;
  const Manifest manifest_;
  // Keys are "model" or the state file, then the name.
  absl::flat_hash_map<std::string, size_t> tensors_;
  std::vector<uint64_t> first_blocks_;
  std::vector<uint64_t> data_begins_;  // By file: where its tensors begin.
  BlockSet seen_{0};
  absl::Status damage_;
};

// The checkpoint to resume from, fully verified; NotFound when the lineage holds no whole one.
// PermissionDenied: a checkpoint that may be whole cannot be read.
absl::StatusOr<std::unique_ptr<Checkpoint>> FindLatest(Storage& storage);

// A checkpoint that was committed according to records of the run outside the storage.
struct KnownSave {
  StepId id;
  std::string path;  // The full path, for messages.
};

struct AttemptOptions {
  std::string job;     // The id of a run that begins. One that goes on keeps its own.
  bool fresh = false;  // Start from scratch, whatever the storage holds.
  // The checks of rank 0 before the attempt begins. With kSizes the ranks check every byte while
  // they read (restore_agreement.h), and begin once more if the checkpoint is damaged.
  Verify verify = Verify::kHashes;
  // The checkpoints that were found to be damaged so. They are passed over.
  struct DamagedTry {
    absl::Status why;
    int64_t epoch = 0;  // The attempt that would have resumed from it.
  };
  std::map<StepId, DamagedTry> damaged = {};
  // Gives the newest such checkpoint; called on rank 0 when none is found in the storage. May be
  // null.
  std::function<std::optional<KnownSave>()> known_save;
  // Called on all ranks when rank 0 has found the checkpoint and the others have not opened it yet;
  // may be collective. May be null.
  std::function<absl::Status(const StepId& found)> before_open;
};

// Whether a checkpoint has no states, as `dtrain checkpoint import` writes it. It is of no run yet.
bool HoldsWeightsAlone(const Manifest& manifest);
// Logs that a checkpoint is passed over, and why.
void LogNotUsed(const StepId& id, const absl::Status& why);
// The error of a start where a checkpoint may be whole but cannot be read: to resume from an older
// one would lose its steps.
absl::Status CannotBeRead(const StepId& id, const absl::Status& why);

// The start of a run attempt on all ranks: rank 0 finds the latest checkpoint (unless `fresh`),
// begins the epoch that resumes from it, and tells the others. Each call begins an epoch, so
// writers of older attempts are fenced before anything is read. FailedPrecondition on rank 0: there
// is no checkpoint to resume from, although this run had one; the message gives the evidence.
// PermissionDenied: a checkpoint cannot be read. `timeout`: of an exchange, and of a piece of rank
// 0's search.
struct Attempt {
  EpochRecord epoch;                       // For WriterOptions.
  std::unique_ptr<Checkpoint> checkpoint;  // Null: start from scratch.
};
absl::StatusOr<Attempt> BeginAttempt(Storage& storage, Exchange& exchange,
                                     const AttemptOptions& options, absl::Duration timeout);

}  // namespace dtrain::checkpoint
