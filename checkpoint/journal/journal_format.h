// The file format of the step journal (docs/CHECKPOINT_FORMAT.md): what a rank's segment begins
// with, and what each step's record begins with. Pure.
//
// A segment holds the steps after one step, its base, as far as one attempt of the run journalled
// them. Each rank writes its own file:
//
//   header  magic, length and CRC-32C of a JSON object, the object
//   record  head of 64 bytes, CRC-32C of each 4 MiB of the gradient, text, blobs, gradient
//   record  ...
//
// Numbers are little-endian. A record counts when all of its bytes are there and verify.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/json.h"
#include "base/numeric/dtype.h"
#include "checkpoint/format/step_id.h"

namespace dtrain::checkpoint {

inline constexpr char kJournalFolder[] = "journal";

// Elements [begin, end) of the flat layout.
struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const ElementRange&) const = default;
};

struct SegmentHeader {
  std::string job;
  StepId id;                 // The attempt that writes it, and the base.
  int64_t attempt_base = 0;  // The step at which that attempt began.
  int rank = 0;
  int world_size = 1;
  std::string layout_hash;
  Json settings = Json::object();    // Updates follow from these; a replay wants the same.
  DType dtype = DType::kBFloat16;    // The gradients': bf16 or fp32.
  std::vector<ElementRange> ranges;  // This rank's gradients hold these, in this order.

  uint64_t gradient_bytes() const;
  bool operator==(const SegmentHeader&) const = default;
};

// "journal/step-000000000137.e2".
std::string SegmentFolder(const StepId& id);
// "journal/step-000000000137.e2/rank-0-of-4.journal".
std::string SegmentPath(const StepId& id, int rank, int world_size);

inline constexpr size_t kHeaderStartBytes = 16;
inline constexpr uint64_t kHeaderTextBytesMax = 64 << 20;

std::string EncodeHeader(const SegmentHeader& header);
// The bytes of the JSON object that follow the first kHeaderStartBytes. InvalidArgument: no
// journal.
absl::StatusOr<uint64_t> HeaderTextBytes(absl::Span<const std::byte> start);
// `text`: that object. InvalidArgument names what is wrong with it.
absl::StatusOr<SegmentHeader> ParseHeader(absl::Span<const std::byte> start,
                                          absl::string_view text);

inline constexpr size_t kRecordHeadBytes = 64;
inline constexpr uint64_t kRecordTextBytesMax = 4 << 20;
// Far above what any file holds, and small enough that sums of sizes cannot overflow.
inline constexpr uint64_t kRecordPartBytesMax = uint64_t{1} << 56;

// The head of a step's record.
struct RecordHead {
  int64_t step = 0;
  uint64_t text_bytes = 0;
  uint64_t blob_bytes = 0;
  uint64_t gradient_bytes = 0;
  uint32_t text_crc = 0;
  uint32_t blob_crc = 0;
  uint32_t blocks_crc = 0;  // Covers the list of the blocks' checksums.
  bool has_after = false;   // A run can go on from behind this step.

  uint64_t blocks() const;
  uint64_t blocks_bytes() const { return blocks() * sizeof(uint32_t); }
  // The whole record's.
  uint64_t bytes() const {
    return kRecordHeadBytes + blocks_bytes() + text_bytes + blob_bytes + gradient_bytes;
  }
  bool operator==(const RecordHead&) const = default;
};

std::array<std::byte, kRecordHeadBytes> EncodeHead(const RecordHead& head);
// InvalidArgument: these bytes are no head, or not as they were written.
absl::StatusOr<RecordHead> ParseHead(absl::Span<const std::byte> bytes);

}  // namespace dtrain::checkpoint
