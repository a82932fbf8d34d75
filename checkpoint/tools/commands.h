// The subcommands of `dtrain checkpoint`: each does what its options say and prints the result.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/json.h"
#include "checkpoint/commit/retention.h"

namespace dtrain::checkpoint {

// The options of all subcommands, as they were given.
struct Arguments {
  std::string directory;  // DIR, A, CHECKPOINT or SOURCE.
  std::string other;      // B, OUT or TARGET.
  std::string name;
  bool verify = false;
  bool tensors = false;
  bool json = false;
  bool dry_run = false;
  double tolerance = 0;
  std::string dtype;
  std::string shard_size = "5GB";
  Retention keep;
};

inline constexpr char kCheckpointProgram[] = "dtrain checkpoint";

absl::Status List(const Arguments& arguments);
absl::Status Show(const Arguments& arguments);
absl::Status VerifyAll(const Arguments& arguments);
// The exit code: 0 or 1. Errors of reading a checkpoint that is there are Unavailable (75).
absl::StatusOr<int> Diff(const Arguments& arguments);
absl::Status Export(const Arguments& arguments);
absl::Status Import(const Arguments& arguments);
absl::Status PruneFolder(const Arguments& arguments);
absl::Status RepairFolder(const Arguments& arguments);
absl::Status Copy(const Arguments& arguments);

void PrintJson(const Json& json);

// The bytes in "5GB", "512MiB" or "1000000"; InvalidArgument names `option`.
absl::StatusOr<uint64_t> ParseSize(const std::string& option, const std::string& text);

}  // namespace dtrain::checkpoint
