#include "checkpoint/journal/segment_reader.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "base/status.h"
#include "base/threads/work_count.h"
#include "checkpoint/format/checksum.h"

namespace dtrain::checkpoint {
namespace {

absl::Span<std::byte> Writable(std::string& text) {
  return {reinterpret_cast<std::byte*>(text.data()), text.size()};
}

absl::StatusOr<SegmentHeader> ReadHeader(const ReadableFile& file, uint64_t& end) {
  std::array<std::byte, kHeaderStartBytes> start{};
  DT_RETURN_IF_ERROR(file.ReadAt(0, absl::MakeSpan(start)));
  DT_ASSIGN_OR_RETURN(const uint64_t bytes, HeaderTextBytes(start));
  if (bytes > file.bytes() - kHeaderStartBytes) {
    return absl::InvalidArgumentError("it ends inside its header");
  }
  std::string text(bytes, '\0');
  DT_RETURN_IF_ERROR(file.ReadAt(kHeaderStartBytes, Writable(text)));
  end = kHeaderStartBytes + bytes;
  return ParseHeader(start, text);
}

absl::StatusOr<SegmentReader::Text> ParseText(const std::string& text, uint64_t blob_bytes) {
  DT_ASSIGN_OR_RETURN(Json json, ParseJson(text, "journal record"));
  const auto wrong = [](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("the record's text holds no valid ", what));
  };
  if (!json.is_object() || !json.contains("end") || !json["end"].is_object()) {
    return wrong("\"end\"");
  }
  if (!json.contains("after") || (!json["after"].is_null() && !json["after"].is_object())) {
    return wrong("\"after\"");
  }
  if (!json.contains("blobs") || !json["blobs"].is_array()) {
    return wrong("\"blobs\"");
  }
  SegmentReader::Text parsed{.end = std::move(json["end"]), .after = std::move(json["after"])};
  uint64_t left = blob_bytes;
  for (const Json& blob : json["blobs"]) {
    if (!blob.is_array() || blob.size() != 2 || !blob[0].is_string() ||
        !blob[1].is_number_unsigned() || blob[1].get<uint64_t>() > left) {
      return wrong("list of \"blobs\"");
    }
    left -= blob[1].get<uint64_t>();
    parsed.blobs.emplace_back(blob[0].get<std::string>(), blob[1].get<uint64_t>());
  }
  return left == 0 ? absl::StatusOr<SegmentReader::Text>(std::move(parsed))
                   : wrong("list of \"blobs\"");
}

}  // namespace

std::optional<SegmentFile> SegmentFile::FromPath(const std::string& path) {
  const std::vector<absl::string_view> parts = absl::StrSplit(path, '/');
  const auto id = parts.size() == 3 ? StepId::FromDirectoryName(parts[1]) : std::nullopt;
  absl::string_view name = parts.back();
  if (!id.has_value() || !absl::ConsumePrefix(&name, "rank-") ||
      !absl::ConsumeSuffix(&name, ".journal")) {
    return std::nullopt;
  }
  const std::pair<absl::string_view, absl::string_view> numbers =
      absl::StrSplit(name, absl::MaxSplits("-of-", 1));
  SegmentFile file{.id = *id};
  const bool is_named = absl::SimpleAtoi(numbers.first, &file.rank) &&
                        absl::SimpleAtoi(numbers.second, &file.world_size) && file.rank >= 0 &&
                        file.rank < file.world_size &&
                        SegmentPath(file.id, file.rank, file.world_size) == path;
  return is_named ? std::optional(file) : std::nullopt;
}

absl::StatusOr<std::unique_ptr<SegmentReader>> SegmentReader::Open(Storage& storage,
                                                                   const SegmentFile& which) {
  const std::string path = SegmentPath(which.id, which.rank, which.world_size);
  DT_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, storage.OpenFile(path));
  // It names the copy that is opened.
  return OpenCopy({std::move(file), storage.DisplayName(path)}, which);
}

absl::StatusOr<std::unique_ptr<SegmentReader>> SegmentReader::OpenCopy(FileCopy copy,
                                                                       const SegmentFile& which) {
  uint64_t end = 0;
  absl::StatusOr<SegmentHeader> header = ReadHeader(*copy.file, end);
  if (!header.ok()) {
    return Annotate(header.status(), copy.display_name);
  }
  if (header->id != which.id || header->rank != which.rank ||
      header->world_size != which.world_size) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s holds the journal of rank %d of %d from %s on, which its name does not say",
        copy.display_name, header->rank, header->world_size, header->id.ToString()));
  }
  std::unique_ptr<SegmentReader> reader(
      new SegmentReader(std::move(copy), *std::move(header), end));
  reader->FindRecords();
  return reader;
}

void SegmentReader::FindRecords() {
  uint64_t offset = header_end_;
  for (int64_t step = header_.id.step + 1; offset < file_->bytes(); ++step) {
    const absl::StatusOr<Record> record = RecordAt(step, offset);
    if (!record.ok()) {
      // Whether the record is damaged or could not be read stays as it was.
      end_ = Annotate(record.status(),
                      absl::StrFormat("%s counts up to step %d: no whole record begins at byte %d",
                                      name_, step - 1, offset));
      DT_LOG(Info) << end_.message();
      return;
    }
    offset += record->head.bytes();
    records_.push_back(*record);
  }
}

absl::StatusOr<SegmentReader::Record> SegmentReader::RecordAt(int64_t step, uint64_t offset) const {
  const uint64_t left = file_->bytes() - offset;
  if (left < kRecordHeadBytes) {
    return absl::InvalidArgumentError("the file ends inside the head of the record");
  }
  std::array<std::byte, kRecordHeadBytes> bytes{};
  DT_RETURN_IF_ERROR(file_->ReadAt(offset, absl::MakeSpan(bytes)));
  WorkCount::Note();
  DT_ASSIGN_OR_RETURN(const RecordHead head, ParseHead(bytes));
  if (head.step != step) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a record of step %d stands there", head.step));
  }
  if (head.gradient_bytes != 0 && head.gradient_bytes != header_.gradient_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("its gradient has %d bytes; the header's ranges have %d",
                        head.gradient_bytes, header_.gradient_bytes()));
  }
  if (head.bytes() > left) {
    return absl::InvalidArgumentError("the file ends inside the record");
  }
  return Record{head, offset};
}

absl::StatusOr<std::string> SegmentReader::ReadChecked(uint64_t offset, uint64_t bytes,
                                                       uint32_t crc, absl::string_view what) const {
  std::string text(bytes, '\0');
  DT_RETURN_IF_ERROR(file_->ReadAt(offset, Writable(text)));
  WorkCount::Note();
  if (Crc32c(text.data(), text.size()) != crc) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %s at byte %d is damaged", name_, what, offset));
  }
  return text;
}

absl::Status SegmentReader::Verify(int64_t step) const {
  const Record& record = RecordOf(step);
  const RecordHead& head = record.head;
  uint64_t offset = record.offset + kRecordHeadBytes;
  DT_ASSIGN_OR_RETURN(const std::string list,
                      ReadChecked(offset, head.blocks_bytes(), head.blocks_crc,
                                  absl::StrFormat("the list of checksums of step %d", step)));
  std::vector<uint32_t> blocks(head.blocks());
  std::memcpy(blocks.data(), list.data(), list.size());
  offset += head.blocks_bytes();
  DT_ASSIGN_OR_RETURN(const std::string text,
                      ReadChecked(offset, head.text_bytes, head.text_crc,
                                  absl::StrFormat("the text of step %d", step)));
  DT_RETURN_IF_ERROR(Annotate(ParseText(text, head.blob_bytes).status(), name_));
  offset += head.text_bytes;
  DT_RETURN_IF_ERROR(ReadChecked(offset, head.blob_bytes, head.blob_crc,
                                 absl::StrFormat("the state of step %d", step))
                         .status());
  offset += head.blob_bytes;
  uint64_t left = head.gradient_bytes;
  for (const uint32_t crc : blocks) {
    const uint64_t bytes = std::min(left, kBlockBytes);
    DT_RETURN_IF_ERROR(
        ReadChecked(offset, bytes, crc, absl::StrFormat("the gradient of step %d", step)).status());
    offset += bytes;
    left -= bytes;
  }
  return absl::OkStatus();
}

absl::StatusOr<SegmentReader::Text> SegmentReader::ReadText(int64_t step) const {
  const Record& record = RecordOf(step);
  const uint64_t offset = record.offset + kRecordHeadBytes + record.head.blocks_bytes();
  DT_ASSIGN_OR_RETURN(const std::string text,
                      ReadChecked(offset, record.head.text_bytes, record.head.text_crc,
                                  absl::StrFormat("the text of step %d", step)));
  absl::StatusOr<Text> parsed = ParseText(text, record.head.blob_bytes);
  return parsed.ok() ? std::move(parsed) : Annotate(parsed.status(), name_);
}

absl::StatusOr<AfterStep> SegmentReader::ReadAfter(int64_t step) const {
  const Record& record = RecordOf(step);
  DT_ASSIGN_OR_RETURN(Text text, ReadText(step));
  const uint64_t offset =
      record.offset + kRecordHeadBytes + record.head.blocks_bytes() + record.head.text_bytes;
  DT_ASSIGN_OR_RETURN(const std::string all,
                      ReadChecked(offset, record.head.blob_bytes, record.head.blob_crc,
                                  absl::StrFormat("the state of step %d", step)));
  AfterStep after{.state = std::move(text.after)};
  size_t at = 0;
  for (auto& [name, bytes] : text.blobs) {
    const auto* const begin = reinterpret_cast<const std::byte*>(all.data()) + at;
    after.blobs.push_back({std::move(name), std::vector<std::byte>(begin, begin + bytes)});
    at += bytes;
  }
  return after;
}

absl::Status SegmentReader::ReadGradient(int64_t step, uint64_t offset,
                                         absl::Span<std::byte> into) const {
  const Record& record = RecordOf(step);
  const uint64_t begin = record.offset + record.head.bytes() - record.head.gradient_bytes;
  return file_->ReadAt(begin + offset, into);
}

}  // namespace dtrain::checkpoint
