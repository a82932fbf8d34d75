// A preparation's record of its finished parts, in its working folder: after an interruption the
// same command goes on from there. Values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/json.h"
#include "runtime/plan/data/text/token_spool.h"

namespace dtrain::plan {

// How many records became nothing, or not what they were, by reason.
struct PrepareCounts {
  int64_t bad = 0;
  int64_t empty = 0;
  int64_t equal = 0;
  int64_t no_completion = 0;
  int64_t cut = 0;
  int64_t dropped_long = 0;
  int64_t not_text = 0;
  int64_t too_long = 0;    // Files of folders.
  int64_t unreadable = 0;  // The same.
  int64_t text_bytes = 0;  // Bytes of the documents that were taken.
  bool operator==(const PrepareCounts&) const = default;
};

struct PrepareProgress {
  std::string fingerprint;  // Covers the options, the sources and the tokenizer.
  int64_t source = 0;       // The next record's.
  int64_t record = 0;
  int64_t seen = 0;  // Hashes of documents in the file of hashes.
  bool at_limit = false;
  PrepareCounts counts;
  SpoolSize train;
  SpoolSize validation;
  bool operator==(const PrepareProgress&) const = default;

  Json ToJson() const;
  // InvalidArgument: a member is missing or out of range.
  static absl::StatusOr<PrepareProgress> FromJson(const Json& json);
};

}  // namespace dtrain::plan
