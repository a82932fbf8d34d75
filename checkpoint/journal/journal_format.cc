#include "checkpoint/journal/journal_format.h"

#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/crc32c.h"
#include "base/json.h"
#include "base/status.h"
#include "checkpoint/format/checksum.h"
#include "checkpoint/format/json_fields.h"
#include "checkpoint/format/manifest.h"

namespace dtrain::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr char kFormat[] = "dtrain-journal";
constexpr std::array<char, 8> kFileMagic = {'D', 'T', 'J', 'O', 'U', 'R', 'N', '1'};
constexpr std::array<char, 8> kRecordMagic = {'D', 'T', 'S', 'T', 'E', 'P', '0', '1'};
constexpr uint32_t kHasAfter = 1;

// A cursor over bytes of a fixed size.
template <typename T>
void Put(T value, std::byte*& at) {
  std::memcpy(at, &value, sizeof(value));
  at += sizeof(value);
}

template <typename T>
T Get(const std::byte*& at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  at += sizeof(value);
  return value;
}

Json HeaderJson(const SegmentHeader& header) {
  Json ranges = Json::array();
  for (const ElementRange& range : header.ranges) {
    ranges.push_back({range.begin, range.end});
  }
  return {{"format", kFormat},
          {"version", 1},
          {"job", header.job},
          {"epoch", header.id.epoch},
          {"base", header.id.step},
          {"attempt_base", header.attempt_base},
          {"rank", header.rank},
          {"world_size", header.world_size},
          {"layout_hash", header.layout_hash},
          {"settings", header.settings},
          {"dtype", header.dtype == DType::kBFloat16 ? "bf16" : "fp32"},
          {"ranges", std::move(ranges)}};
}

absl::StatusOr<std::vector<ElementRange>> ParseRanges(JsonFields& fields) {
  DT_ASSIGN_OR_RETURN(const Json* const list, fields.Array("ranges"));
  std::vector<ElementRange> ranges;
  ranges.reserve(list->size());
  for (const Json& item : *list) {
    DT_ASSIGN_OR_RETURN(const std::vector<int64_t> ends, JsonIntegers(item, "a range", 0));
    if (ends.size() != 2 || ends[0] > ends[1] || ends[1] > int64_t{1} << 50) {
      return absl::InvalidArgumentError(
          "a range of the journal's header is no [begin, end) of elements");
    }
    ranges.push_back({ends[0], ends[1]});
  }
  return ranges;
}

absl::StatusOr<SegmentHeader> ParseHeaderJson(const Json& json) {
  JsonFields fields(json, "journal header");
  SegmentHeader header;
  DT_ASSIGN_OR_RETURN(const std::string format, fields.String("format"));
  DT_ASSIGN_OR_RETURN(const int64_t version, fields.Integer("version", 0, kStepMax));
  if (format != kFormat || version != 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "it has format %s version %d; this program reads %s version 1", format, version, kFormat));
  }
  DT_ASSIGN_OR_RETURN(header.job, fields.String("job"));
  DT_ASSIGN_OR_RETURN(header.id.epoch, fields.Integer("epoch", 1, kEpochMax));
  DT_ASSIGN_OR_RETURN(header.id.step, fields.Integer("base", 0, kStepMax));
  DT_ASSIGN_OR_RETURN(header.attempt_base, fields.Integer("attempt_base", 0, header.id.step));
  DT_ASSIGN_OR_RETURN(const int64_t world, fields.Integer("world_size", 1, kWorldSizeMax));
  DT_ASSIGN_OR_RETURN(const int64_t rank, fields.Integer("rank", 0, world - 1));
  header.world_size = static_cast<int>(world);
  header.rank = static_cast<int>(rank);
  DT_ASSIGN_OR_RETURN(header.layout_hash, fields.String("layout_hash"));
  DT_ASSIGN_OR_RETURN(header.settings, fields.Object("settings"));
  DT_ASSIGN_OR_RETURN(const std::string dtype, fields.String("dtype"));
  if (dtype != "bf16" && dtype != "fp32") {
    return absl::InvalidArgumentError(
        absl::StrCat("its gradients are of dtype \"", dtype, "\"; allowed: bf16, fp32"));
  }
  header.dtype = dtype == "bf16" ? DType::kBFloat16 : DType::kFloat32;
  DT_ASSIGN_OR_RETURN(header.ranges, ParseRanges(fields));
  DT_RETURN_IF_ERROR(fields.Finish());
  return header;
}

}  // namespace

uint64_t SegmentHeader::gradient_bytes() const {
  uint64_t elements = 0;
  for (const ElementRange& range : ranges) {
    elements += static_cast<uint64_t>(range.end - range.begin);
  }
  return elements * DTypeBytes(dtype);
}

std::string SegmentFolder(const StepId& id) {
  return absl::StrCat(kJournalFolder, "/", id.DirectoryName());
}

std::string SegmentPath(const StepId& id, int rank, int world_size) {
  return absl::StrFormat("%s/rank-%d-of-%d.journal", SegmentFolder(id), rank, world_size);
}

std::string EncodeHeader(const SegmentHeader& header) {
  const std::string text = DumpJson(HeaderJson(header));
  std::array<std::byte, kHeaderStartBytes> start{};
  std::byte* at = start.data();
  Put(kFileMagic, at);
  Put(static_cast<uint32_t>(text.size()), at);
  Put(Crc32c(text.data(), text.size()), at);
  return absl::StrCat(absl::string_view(reinterpret_cast<const char*>(start.data()), start.size()),
                      text);
}

absl::StatusOr<uint64_t> HeaderTextBytes(absl::Span<const std::byte> start) {
  const std::byte* at = start.data();
  if (start.size() != kHeaderStartBytes || Get<std::array<char, 8>>(at) != kFileMagic) {
    return absl::InvalidArgumentError("it does not begin as a journal does");
  }
  const uint64_t bytes = Get<uint32_t>(at);
  if (bytes > kHeaderTextBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("its header claims %d bytes; allowed: %d", bytes, kHeaderTextBytesMax));
  }
  return bytes;
}

absl::StatusOr<SegmentHeader> ParseHeader(absl::Span<const std::byte> start,
                                          absl::string_view text) {
  DT_ASSIGN_OR_RETURN(const uint64_t bytes, HeaderTextBytes(start));
  const std::byte* at = start.data() + sizeof(kFileMagic) + sizeof(uint32_t);
  if (bytes != text.size() || Get<uint32_t>(at) != Crc32c(text.data(), text.size())) {
    return absl::InvalidArgumentError("its header is damaged");
  }
  DT_ASSIGN_OR_RETURN(const Json json, ParseJson(text, "journal header"));
  return ParseHeaderJson(json);
}

uint64_t RecordHead::blocks() const { return (gradient_bytes + kBlockBytes - 1) / kBlockBytes; }

std::array<std::byte, kRecordHeadBytes> EncodeHead(const RecordHead& head) {
  std::array<std::byte, kRecordHeadBytes> bytes{};
  std::byte* at = bytes.data();
  Put(kRecordMagic, at);
  Put(head.step, at);
  Put(head.text_bytes, at);
  Put(head.blob_bytes, at);
  Put(head.gradient_bytes, at);
  Put(head.text_crc, at);
  Put(head.blob_crc, at);
  Put(head.blocks_crc, at);
  Put(head.has_after ? kHasAfter : uint32_t{0}, at);
  Put(uint32_t{0}, at);
  Put(Crc32c(bytes.data(), static_cast<size_t>(at - bytes.data())), at);
  return bytes;
}

absl::StatusOr<RecordHead> ParseHead(absl::Span<const std::byte> bytes) {
  constexpr size_t kSummed = kRecordHeadBytes - sizeof(uint32_t);
  const std::byte* at = bytes.data();
  if (bytes.size() != kRecordHeadBytes || Get<std::array<char, 8>>(at) != kRecordMagic) {
    return absl::InvalidArgumentError("no record begins there");
  }
  RecordHead head;
  head.step = Get<int64_t>(at);
  head.text_bytes = Get<uint64_t>(at);
  head.blob_bytes = Get<uint64_t>(at);
  head.gradient_bytes = Get<uint64_t>(at);
  head.text_crc = Get<uint32_t>(at);
  head.blob_crc = Get<uint32_t>(at);
  head.blocks_crc = Get<uint32_t>(at);
  const uint32_t flags = Get<uint32_t>(at);
  const uint32_t reserved = Get<uint32_t>(at);
  if (Get<uint32_t>(at) != Crc32c(bytes.data(), kSummed)) {
    return absl::InvalidArgumentError("the head of the record is damaged");
  }
  if (head.step < 1 || head.step > kStepMax || head.text_bytes > kRecordTextBytesMax ||
      head.blob_bytes > kRecordPartBytesMax || head.gradient_bytes > kRecordPartBytesMax ||
      flags > kHasAfter || reserved != 0) {
    return absl::InvalidArgumentError("the head of the record holds a number out of range");
  }
  head.has_after = flags == kHasAfter;
  return head;
}

}  // namespace dtrain::checkpoint
