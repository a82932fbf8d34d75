// MANIFEST.json, version 1: the list of a checkpoint's files, tensors and state. Its appearance is
// the commit.
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

// The state of a save, besides tensors, that is the same on all ranks; rank 0's is stored. Only
// their writers understand the JSON objects.
struct JobState {
  int zero_stage = 0;
  // Hash of the ParamLayout: state/ can be read back only into the same layout.
  std::string layout_hash;
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
  std::optional<StepId> parent;  // The checkpoint that this one continues; no value: from scratch.
  // The writer's nonce: tells its own commit, whose reply was lost, from another's.
  std::string nonce;
  int world_size = 1;
  int64_t created_unix_ms = 0;  // For people; no decision reads it.
  JobState state;
  // One object for each rank, with its RNG and other state that differs by rank.
  std::vector<Json> rank_state;
  std::vector<ManifestFile> files;
  std::vector<ManifestTensor> tensors;  // Tensors of all files, in file and offset order.

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
