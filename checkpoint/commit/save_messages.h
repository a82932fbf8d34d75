// The messages that ranks exchange during a save. Pure; every message is one JSON object.
//
// Order: proposal (all -> 0), plan (0 -> all), report (all -> 0), a report's status alone (all ->
// 0), verdict (0 -> all).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/format/step_id.h"

namespace dtrain::checkpoint {

struct SaveProposal {
  StepId id;
  int model_shards = 0;  // Files that this rank will write into model/.
  absl::Status status;   // Why this rank cannot save.
};

struct SavePlan {
  bool go = false;  // False: `outcome` and `status` say why.
  int outcome = 0;  // SaveOutcome.
  absl::Status status;
  std::vector<int> first_shard;  // By rank, from 1.
  int shard_count = 0;
};

struct RankReport {
  absl::Status status;
  Json rank_state = Json::object();
  std::vector<WrittenFile> files;  // Paths relative to the checkpoint's folder.
};

struct SaveVerdict {
  int outcome = 0;  // SaveOutcome.
  absl::Status status;
  uint64_t bytes = 0;
};

std::string Encode(const SaveProposal& message);
std::string Encode(const SavePlan& message);
std::string Encode(const RankReport& message);
std::string Encode(const SaveVerdict& message);
absl::StatusOr<SaveProposal> ParseProposal(absl::string_view text);
absl::StatusOr<SavePlan> ParsePlan(absl::string_view text);
absl::StatusOr<RankReport> ParseReport(absl::string_view text);
absl::StatusOr<SaveVerdict> ParseVerdict(absl::string_view text);

}  // namespace dtrain::checkpoint
