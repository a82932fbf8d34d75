// How the ranks agree that a checkpoint, which all of them have read, is whole.
//
// Each rank reads what it needs and compares it with the checksums (tensor_reads.h). The ranks then
// report which blocks they have seen. Blocks that no rank has needed are shared out and compared
// too, so a checkpoint that is used was read as a whole and was whole. Until then a damaged one can
// be given up for the one before it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/exchange.h"
#include "checkpoint/restore/reader.h"

namespace dtrain::checkpoint {

// The report of a rank that has done its reads.
struct RestoreReport {
  absl::Status status;   // OK when all of its reads were.
  bool damaged = false;  // The checkpoint is why they failed, and not what was asked of it.
  std::string seen;      // BlockSet::Encode.
};
std::string EncodeRestoreReport(const RestoreReport& report);
absl::StatusOr<RestoreReport> ParseRestoreReport(absl::string_view text);

// Rank 0's decision.
struct RestoreVerdict {
  enum class Kind : char {
    kWhole = 'w',
    kUnseen = 'u',      // `text` holds the blocks that nobody has seen (BlockSet::Encode).
    kDamaged = 'd',     // `text` says what is damaged.
    kUnreadable = 'p',  // Like kDamaged, but it may be whole: PermissionDenied.
    kFailed = 'f',      // `text` says which rank failed and why.
  };
  Kind kind = Kind::kFailed;
  std::string text;
};
// Decides by the reports of all ranks, in their order. Damage counts before other errors, since it
// may be their reason. Pure.
RestoreVerdict JudgeRestore(const std::vector<std::string>& reports, uint64_t blocks);

// Collective: OK when the checkpoint was read and is whole. Otherwise why it is not used, which is
// the same on every rank and logged by rank 0. An error ends the attempt: this rank's own `mine`,
// or what another rank met. `timeout` is for each exchange with the others.
struct RestoreOutcome {
  absl::Status damage;  // OK: it is whole.
};
absl::StatusOr<RestoreOutcome> AgreeOnRestore(Checkpoint& from, const absl::Status& mine,
                                              Exchange& exchange, absl::Duration timeout);

}  // namespace dtrain::checkpoint
