// Finds and reads checkpoints.
//
// FindLatest follows the lineage of run attempts and takes the newest checkpoint whose every hash
// verifies; each one it rejects is logged with file and reason. Every block read is checked again
// against its CRC. A Checkpoint is used by one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/numeric/dtype.h"
#include "checkpoint/commit/epoch.h"
#include "checkpoint/exchange.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/safetensors.h"
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
  // Reads a tensor of model/ into `into`. InvalidArgument when dtype or size differ from
  // `expected`; NotFound names the tensor.
  absl::Status ReadModelTensor(const TensorSpec& expected, absl::Span<std::byte> into);

  // FailedPrecondition unless the checkpoint was written with this layout: another model cannot use
  // state/.
  absl::Status CheckLayout(absl::string_view layout_hash) const;
  std::vector<TensorEntry> StateTensors(int rank) const;
  // Reads a tensor of state/rank-R. REQUIRES: 0 <= rank < manifest().world_size.
  absl::Status ReadStateTensor(int rank, const TensorSpec& expected, absl::Span<std::byte> into);
  // A file of model/ beside the weights ("config.json").
  absl::StatusOr<std::string> ReadModelFile(const std::string& name);

 private:
  Checkpoint(Storage& storage, Manifest manifest);
  absl::Status Read(const std::string& key, const TensorSpec& expected, absl::Span<std::byte> into);
  absl::StatusOr<const SafetensorsReader*> OpenTensors(size_t file);

  Storage& storage_;
  const Manifest manifest_;
  // Keys are "model" or the state file, then the name.
  absl::flat_hash_map<std::string, size_t> tensors_;
  std::vector<std::unique_ptr<SafetensorsReader>> open_;
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
  std::string job;
  bool fresh = false;  // Start from scratch, whatever the storage holds.
  // Gives the newest such checkpoint; called on rank 0 when none is found in the storage. May be
  // null.
  std::function<std::optional<KnownSave>()> known_save;
  // Called on rank 0 before it searches; its error ends the attempt. May be null.
  std::function<absl::Status()> before_search;
  // Called on all ranks when rank 0 has found the checkpoint and the others have not opened it yet;
  // may be collective. May be null.
  std::function<absl::Status(const StepId& found)> before_open;
};

// The start of a run attempt on all ranks: rank 0 finds the latest checkpoint (unless `fresh`),
// begins the epoch that resumes from it, and tells the others. FailedPrecondition on rank 0: there
// is no checkpoint to resume from, although this run had one; the message gives the evidence.
// PermissionDenied: a checkpoint cannot be read.
struct Attempt {
  EpochRecord epoch;                       // For WriterOptions.
  std::unique_ptr<Checkpoint> checkpoint;  // Null: start from scratch.
};
absl::StatusOr<Attempt> BeginAttempt(Storage& storage, Exchange& exchange,
                                     const AttemptOptions& options, Deadline deadline);

}  // namespace dtrain::checkpoint
