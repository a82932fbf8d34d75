// Appends steps to this rank's file of a segment of the step journal. Used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/json.h"
#include "checkpoint/journal/journal_format.h"
#include "checkpoint/storage/storage.h"

namespace dtrain::checkpoint {

// Bytes that a step changed, by name: a random generator's state, a module's buffer.
struct JournalBlob {
  std::string name;
  std::vector<std::byte> bytes;
};

// The states that a run needs to go on behind a step, beside weights and optimizer states.
struct AfterStep {
  Json state = Json::object();
  std::vector<JournalBlob> blobs;
};

// All that a rank journals of a step.
struct JournalStep {
  int64_t step = 0;
  Json end = Json::object();  // The numbers that the update took beside the gradient.
  // This rank's part of the reduced gradient, SegmentHeader::gradient_bytes(); empty: the step
  // changed no weights.
  absl::Span<const std::byte> gradient;
  const AfterStep* after = nullptr;  // Null: nothing went on from behind this step.
};

class SegmentWriter {
 public:
  // Creates the file and makes its header durable. AlreadyExists: this attempt has begun a segment
  // at this base before. REQUIRES: `storage` outlives the writer.
  static absl::StatusOr<std::unique_ptr<SegmentWriter>> Create(Storage& storage,
                                                               const SegmentHeader& header);

  // Returns when the record is durable. REQUIRES: steps follow each other, from the base on, and no
  // earlier call has failed.
  absl::Status Append(const JournalStep& step);
  uint64_t bytes() const { return bytes_; }

 private:
  SegmentWriter(std::unique_ptr<WritableFile> file, uint64_t bytes)
      : file_(std::move(file)), bytes_(bytes) {}

  const std::unique_ptr<WritableFile> file_;
  uint64_t bytes_;  // Written so far.
};

}  // namespace dtrain::checkpoint
