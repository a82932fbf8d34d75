// Finding and reading checkpoints.
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

  // Names, dtypes and shapes of the tensors in model/, of all shards.
  std::vector<TensorEntry> ModelTensors() const;
  // Reads a tensor of model/ into `into`. InvalidArgument when dtype or size differ from
  // `expected`; NotFound names the tensor.
  absl::Status ReadModelTensor(const TensorSpec& expected, absl::Span<std::byte> into);

  // FailedPrecondition unless the checkpoint was written with this layout: state/ is of no use to
  // another model.
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
  absl::flat_hash_map<std::string, size_t> tensors_;  // By "model" or the state file, then name.
  std::vector<std::unique_ptr<SafetensorsReader>> open_;
};

// The checkpoint to resume from, fully verified; NotFound when the lineage holds none that is
// whole. PermissionDenied: one that may be whole cannot be read.
absl::StatusOr<std::unique_ptr<Checkpoint>> FindLatest(Storage& storage);

// A checkpoint that records of the run outside the storage say was committed.
struct KnownSave {
  StepId id;
  std::string path;  // The full path, for messages.
};

struct AttemptOptions {
  std::string job;
  bool fresh = false;  // Start from scratch whatever is there.
  // The newest one; asked on rank 0 when no checkpoint is found. May be null.
  std::function<std::optional<KnownSave>()> known_save;
};

// The start of a run attempt on all ranks: rank 0 finds the latest checkpoint (unless `fresh`),
// begins the epoch that resumes from it, and tells the others. FailedPrecondition on rank 0: there
// is no checkpoint to resume from, though this run had one; the message says what shows it and what
// was found. PermissionDenied: one cannot be read.
struct Attempt {
  EpochRecord epoch;                       // For WriterOptions.
  std::unique_ptr<Checkpoint> checkpoint;  // Null: start from scratch.
};
absl::StatusOr<Attempt> BeginAttempt(Storage& storage, Exchange& exchange,
                                     const AttemptOptions& options, Deadline deadline);

}  // namespace dtrain::checkpoint
