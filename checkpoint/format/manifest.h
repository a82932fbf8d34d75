// MANIFEST.json, version 1: what a checkpoint is made of. Its appearance is the commit.
//
// Encode and Parse are pure and thread-safe. docs/CHECKPOINT_FORMAT.md describes every field.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/json.h"
#include "checkpoint/format/checksum.h"
#include "checkpoint/format/safetensors_header.h"
#include "checkpoint/format/step_id.h"

namespace dtrain::checkpoint {

inline constexpr int kManifestVersion = 1;
inline constexpr char kManifestName[] = "MANIFEST.json";
inline constexpr char kLatestName[] = "latest";  // A hint for people that names the last commit.
inline constexpr uint64_t kManifestBytesMax = 256U << 20;
inline constexpr int kWorldSizeMax = 1 << 20;

// A half-open range of samples that training must not see again (blamed for a loss spike).
struct SkipRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const SkipRange&) const = default;
};

// What a save holds beside tensors and is the same on all ranks; rank 0's is stored. The JSON
// members are objects that only their writers understand.
struct JobState {
  int zero_stage = 0;
  std::string layout_hash;  // Of the ParamLayout: state/ can be read back only into the same one.
  Json engine = Json::object();  // Optimizer step, LR schedule, loss scale...
  Json data = Json::object();    // The data cursor.
  std::vector<SkipRange> skip;   // Sorted, disjoint.
  Json user = Json::object();    // Tracked user state, by name.
};

struct ManifestFile {
  std::string path;  // "model/NAME" or "state/NAME".
  FileChecksum checksum;
};

struct ManifestTensor {
  size_t file = 0;    // Index into Manifest::files.
  TensorEntry entry;  // Offsets from the start of the file's data.
};

struct Manifest {
  std::string job;
  StepId id;
  std::optional<StepId> parent;  // The checkpoint that this one continues; none: from scratch.
  std::string nonce;             // Of the writer: tells its own lost reply from another's commit.
  int world_size = 1;
  int64_t created_unix_ms = 0;  // For people; no decision reads it.
  JobState state;
  std::vector<Json> rank_state;  // One object a rank: RNG and what else differs by rank.
  std::vector<ManifestFile> files;
  std::vector<ManifestTensor> tensors;  // Of all files, in file and offset order.

  const ManifestFile* FindFile(absl::string_view path) const;
  uint64_t data_bytes() const;  // Sum over files.
};

// The file's bytes; the last key is the hash of everything before it.
std::string EncodeManifest(const Manifest& manifest);

// Errors (InvalidArgument) say which field is wrong; `display_name` begins each message.
absl::StatusOr<Manifest> ParseManifest(absl::string_view text, absl::string_view display_name);

// "state/rank-0-of-2.safetensors".
std::string StatePath(int rank, int world_size);

// A file name that a manifest may hold: [A-Za-z0-9_][A-Za-z0-9_.-]{0,127}.
bool IsPlainName(absl::string_view name);

}  // namespace dtrain::checkpoint
