// The journalled steps that follow a checkpoint, and the removal of those that none needs any more.
//
// An attempt of a run that resumes replays the steps of the attempts before it and journals on from
// there. If two attempts journalled the same step, the newer one counts. No step of an older
// attempt counts behind the step at which a newer one began, because its writer may have been
// thought dead and have gone on. Used by one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "checkpoint/journal/journal_format.h"
#include "checkpoint/journal/segment_reader.h"
#include "checkpoint/storage/storage.h"

namespace dtrain::checkpoint {

// A segment, as far as choosing the steps to replay needs it.
struct SegmentSummary {
  StepId id;                 // Attempt and base.
  int64_t attempt_base = 0;  // Where that attempt began.
  int64_t last = 0;          // The last step that all of its ranks hold; the base if there is none.
  bool operator==(const SegmentSummary&) const = default;
};

// Steps [first, last] of one segment.
struct ChainLink {
  StepId segment;
  int64_t first = 0;
  int64_t last = 0;
  bool operator==(const ChainLink&) const = default;
};

// The steps that follow `from` without a gap, in order. Pure.
std::vector<ChainLink> ChainFrom(const StepId& from, std::vector<SegmentSummary> segments);

class Journal {
 public:
  // The journalled steps behind the checkpoint `from`. Files that cannot be read are logged and
  // left out.
  static absl::StatusOr<Journal> Open(Storage& storage, const StepId& from);

  // The last step to which the journal leads; from.step if it has none.
  int64_t last() const { return chain_.empty() ? from_.step : chain_.back().last; }
  // The segments that hold the steps up to last(), in order.
  std::vector<StepId> segments() const;
  // Whether each file was read to its end; else another copy of it may lead further.
  bool is_whole() const { return is_whole_; }
  // Reads the steps of every `parts`-th file from `part` on, and returns the last step to which all
  // are whole. A record that is not whole is logged with file and place. The files are made durable
  // before, because their writer may have been killed first and who goes on builds on them.
  int64_t Verify(int part, int parts) const;
  // Leaves out what follows `step`, and then every step from behind which no run can go on.
  void CutTo(int64_t step);

  // The files of the segment that holds `step`, by rank. REQUIRES: from.step < step <= last().
  using Files = std::vector<std::unique_ptr<SegmentReader>>;
  const Files& FilesOf(int64_t step) const;

 private:
  explicit Journal(const StepId& from) : from_(from) {}
  bool CanGoOn(int64_t step) const;

  StepId from_;
  std::map<StepId, Files> segments_;  // Those of the chain, and others.
  std::vector<ChainLink> chain_;
  bool is_whole_ = true;
};

// Removes the segments that a durable checkpoint `id` has made needless: its attempt's of earlier
// bases, and those of the attempts before it, back to the last fresh start or damaged record. Goes
// on after an error and returns the first.
absl::Status RemoveSegmentsBefore(Storage& storage, const StepId& id);

// The segments in the storage, by attempt, then base. Empty without a journal.
absl::StatusOr<std::vector<StepId>> ListSegments(Storage& storage);
// The number of ranks that the files of a segment are from: N of "rank-R-of-N.journal".
absl::StatusOr<int> SegmentWorldSize(Storage& storage, const StepId& id);

}  // namespace dtrain::checkpoint
