// Reads one rank's file of a segment of the step journal. Used by one thread at a time.
//
// A file ends where its writer was killed, so a record that is cut short or does not verify is the
// end of what counts, and no error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/json.h"
#include "checkpoint/journal/journal_format.h"
#include "checkpoint/journal/segment_writer.h"
#include "checkpoint/storage/storage.h"

namespace dtrain::checkpoint {

// Which file of which segment.
struct SegmentFile {
  StepId id;
  int rank = 0;
  int world_size = 1;

  // The file that SegmentPath names so; no value: the path is none of these.
  static std::optional<SegmentFile> FromPath(const std::string& path);
};

class SegmentReader {
 public:
  // Reads the header and finds the records by their heads. InvalidArgument: the header is damaged,
  // or the file is not the one that its path names.
  static absl::StatusOr<std::unique_ptr<SegmentReader>> Open(Storage& storage,
                                                             const SegmentFile& which);
  // The same of a copy of the file.
  static absl::StatusOr<std::unique_ptr<SegmentReader>> OpenCopy(FileCopy copy,
                                                                 const SegmentFile& which);

  const SegmentHeader& header() const { return header_; }
  // The last step whose record seems whole; the base if there is none.
  int64_t last() const { return header_.id.step + static_cast<int64_t>(records_.size()); }
  // Why no record counts behind last(), with file and place; OK: the file ends there.
  const absl::Status& end() const { return end_; }
  // Whether a run can go on from behind `step`. REQUIRES here and below: base < step <= last().
  bool has_after(int64_t step) const { return RecordOf(step).head.has_after; }
  // Makes all records durable: a writer that was killed may have left the last ones unsynced.
  absl::Status MakeDurable() const { return file_->MakeDurable(); }
  // Where in the file the record of `step` ends; the header's end for the base.
  uint64_t EndOf(int64_t step) const {
    return step == header_.id.step ? header_end_
                                   : RecordOf(step).offset + RecordOf(step).head.bytes();
  }
  // Reads every byte of the step's record. InvalidArgument names file and place of what differs.
  absl::Status Verify(int64_t step) const;

  struct Text {
    Json end;
    Json after;                                           // Null without it.
    std::vector<std::pair<std::string, uint64_t>> blobs;  // Names and sizes, in the file's order.
  };
  absl::StatusOr<Text> ReadText(int64_t step) const;
  // Gives what the run goes on with behind `step`. REQUIRES: has_after.
  absl::StatusOr<AfterStep> ReadAfter(int64_t step) const;
  // Whether the step has a gradient; else it changed no weights.
  bool has_gradient(int64_t step) const { return RecordOf(step).head.gradient_bytes > 0; }
  // Fills `into` with bytes of the gradient from `offset` on; they are not compared with their
  // checksums.
  absl::Status ReadGradient(int64_t step, uint64_t offset, absl::Span<std::byte> into) const;

 private:
  struct Record {
    RecordHead head;
    uint64_t offset = 0;  // Where its head begins in the file.
  };
  SegmentReader(FileCopy copy, SegmentHeader header, uint64_t header_end)
      : file_(std::move(copy.file)),
        name_(std::move(copy.display_name)),
        header_(std::move(header)),
        header_end_(header_end) {}
  void FindRecords();
  // InvalidArgument: no record of `step` is whole at `offset`.
  absl::StatusOr<Record> RecordAt(int64_t step, uint64_t offset) const;
  const Record& RecordOf(int64_t step) const {
    return records_[static_cast<size_t>(step - header_.id.step - 1)];
  }
  absl::StatusOr<std::string> ReadChecked(uint64_t offset, uint64_t bytes, uint32_t crc,
                                          absl::string_view what) const;

  const std::unique_ptr<ReadableFile> file_;
  const std::string name_;  // For messages.
  const SegmentHeader header_;
  const uint64_t header_end_;    // Where the first record begins.
  std::vector<Record> records_;  // One for each step after the base, in order.
  absl::Status end_;
};

}  // namespace dtrain::checkpoint
