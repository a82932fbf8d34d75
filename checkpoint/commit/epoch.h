// Epoch records: each attempt of a run exclusively creates the next record before it starts, and
// notes in it where it resumed. They fence writers that were declared dead and order the commits
// (lineage.h). Plain values and functions on a Storage; thread-safe as that is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/format/step_id.h"
#include "checkpoint/storage/storage.h"

namespace dtrain::checkpoint {

struct EpochRecord {
  std::string job;
  int64_t epoch = 0;
  int world_size = 1;
  std::optional<StepId> resumed_from;  // No value: a deliberate fresh start.
  std::string nonce;
};

// "epochs/E00000003".
std::string EpochPath(int64_t epoch);

std::string EncodeEpoch(const EpochRecord& record);
absl::StatusOr<EpochRecord> ParseEpoch(absl::string_view text, absl::string_view display_name);

// Numbers of the epochs that have a record, ascending; empty when there are none.
absl::StatusOr<std::vector<int64_t>> ListEpochs(Storage& storage);
absl::StatusOr<EpochRecord> ReadEpoch(Storage& storage, int64_t epoch);

// Creates the record after the newest one and returns it, durable. Another attempt that starts at
// the same time gets another number. REQUIRES: only rank 0 of an attempt calls it.
absl::StatusOr<EpochRecord> BeginEpoch(Storage& storage, const std::string& job, int world_size,
                                       std::optional<StepId> resumed_from);

}  // namespace dtrain::checkpoint
