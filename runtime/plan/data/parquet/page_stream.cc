#include "runtime/plan/data/parquet/page_stream.h"

#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/plan/data/parquet/decompress.h"

namespace dtrain::plan::parquet {
namespace {

// Bits that a level up to `most` takes.
int WidthOf(int most) { return std::bit_width(static_cast<unsigned>(most)); }

absl::Status BadPage(const std::string& what) { return absl::InvalidArgumentError(what); }

// Levels of version 1, which are behind their length at the beginning of `bytes`, from where they
// are removed.
absl::StatusOr<RunDecoder> TakeLevels(Encoding encoding, int most, absl::string_view* bytes) {
  if (most == 0) {
    return RunDecoder();
  }
  if (encoding != Encoding::kRle) {
    return BadPage(
        absl::StrFormat("its levels are encoded by %s; want RLE", EncodingName(encoding)));
  }
  uint32_t length = 0;
  if (bytes->size() < sizeof(length)) {
    return BadPage("it ends before its levels");
  }
  std::memcpy(&length, bytes->data(), sizeof(length));
  bytes->remove_prefix(sizeof(length));
  if (length > bytes->size()) {
    return BadPage(absl::StrFormat("its levels take %d bytes of %d", length, bytes->size()));
  }
  const RunDecoder levels(bytes->substr(0, length), WidthOf(most));
  bytes->remove_prefix(length);
  return levels;
}

}  // namespace

PageStream::PageStream(const DataFile& file, const SelectedColumn& column, const ColumnChunk& chunk)
    : file_(file),
      column_(column),
      chunk_(chunk),
      page_at_(chunk.offset),
      next_at_(chunk.offset),
      entries_left_(chunk.values) {}

absl::Status PageStream::Bad(absl::string_view what) const {
  return file_.Bad(
      absl::StrFormat("column \"%s\", page at byte %d: %s", column_.path, page_at_, what));
}

absl::StatusOr<bool> PageStream::Next(PageEntries* page) {
  page->count = 0;
  while (page->count == 0) {  // A dictionary or an index has none.
    if (entries_left_ == 0) {
      return false;
    }
    page_at_ = next_at_;
    const absl::Status status = ReadNext(page);
    if (!status.ok()) {
      return status.code() == absl::StatusCode::kInvalidArgument ? Bad(status.message()) : status;
    }
  }
  return true;
}

absl::StatusOr<PageHeader> PageStream::ReadHeader() const {
  const int64_t end = chunk_.offset + chunk_.bytes;
  constexpr int64_t kUsualBytes = 4096;
  constexpr int64_t kMostBytes = 16 << 20;  // It may hold the page's least and greatest value.
  for (int64_t bytes = kUsualBytes;; bytes *= 16) {
    std::string head(static_cast<size_t>(std::min(bytes, end - page_at_)), '\0');
    DT_RETURN_IF_ERROR(file_.ReadAt(page_at_, absl::MakeSpan(head)));
    absl::StatusOr<PageHeader> header = ParsePageHeader(head);
    if (header.status().code() != absl::StatusCode::kOutOfRange) {
      return header;
    }
    if (bytes > end - page_at_ || bytes >= kMostBytes) {
      return BadPage(absl::StrFormat("its header ends behind %d bytes", head.size()));
    }
  }
}

absl::Status PageStream::ReadNext(PageEntries* page) {
  const int64_t end = chunk_.offset + chunk_.bytes;
  if (page_at_ >= end) {
    return BadPage(absl::StrFormat("there is none, and %d values of %d are lacking", entries_left_,
                                   chunk_.values));
  }
  DT_ASSIGN_OR_RETURN(const PageHeader header, ReadHeader());
  if (header.stored_bytes > end - page_at_ - header.header_bytes) {
    return BadPage(absl::StrFormat("it has %d bytes, of which %d are there", header.stored_bytes,
                                   end - page_at_ - header.header_bytes));
  }
  next_at_ = page_at_ + header.header_bytes + header.stored_bytes;
  if (header.kind == PageKind::kIndex) {
    return absl::OkStatus();
  }
  DT_RETURN_IF_ERROR(ReadStored(header));
  if (header.kind == PageKind::kDictionary) {
    return OpenDictionary(header);
  }
  if (header.values > entries_left_) {
    return BadPage(absl::StrFormat("it has %d values, but its column has %d more", header.values,
                                   entries_left_));
  }
  DT_RETURN_IF_ERROR(header.kind == PageKind::kData ? OpenData(header, page)
                                                    : OpenDataV2(header, page));
  entries_left_ -= header.values;
  page->count = header.values;
  return absl::OkStatus();
}

absl::Status PageStream::ReadStored(const PageHeader& header) {
  stored_.resize(static_cast<size_t>(header.stored_bytes));
  DT_RETURN_IF_ERROR(file_.ReadAt(page_at_ + header.header_bytes, absl::MakeSpan(stored_)));
  if (header.crc.has_value()) {
    const auto crc = static_cast<uint32_t>(
        crc32_z(0, reinterpret_cast<const Bytef*>(stored_.data()), stored_.size()));
    if (crc != *header.crc) {
      return BadPage(absl::StrFormat(
          "its checksum is %08x, but its bytes have %08x: they are damaged", *header.crc, crc));
    }
  }
  return absl::OkStatus();
}

absl::Status PageStream::OpenDictionary(const PageHeader& header) {
  if (has_dictionary_) {
    return BadPage("it is a second dictionary of the column");
  }
  if (header.encoding != Encoding::kPlain && header.encoding != Encoding::kPlainDictionary) {
    return BadPage(absl::StrFormat("its dictionary is encoded by %s; want PLAIN",
                                   EncodingName(header.encoding)));
  }
  if (header.bytes > kDictionaryBytesMax) {
    return BadPage(absl::StrFormat("its dictionary has %d bytes; at most %d are read", header.bytes,
                                   kDictionaryBytesMax));
  }
  DT_RETURN_IF_ERROR(
      Decompress(chunk_.codec, stored_, static_cast<size_t>(header.bytes), &dictionary_bytes_));
  DT_ASSIGN_OR_RETURN(dictionary_,
                      DictionaryValues(column_.type, dictionary_bytes_, header.values));
  has_dictionary_ = true;
  return absl::OkStatus();
}

absl::Status PageStream::OpenData(const PageHeader& header, PageEntries* page) {
  DT_RETURN_IF_ERROR(
      Decompress(chunk_.codec, stored_, static_cast<size_t>(header.bytes), &decompressed_));
  absl::string_view bytes = decompressed_;
  DT_ASSIGN_OR_RETURN(page->repetitions,
                      TakeLevels(header.repetition_encoding, column_.repetition_max, &bytes));
  DT_ASSIGN_OR_RETURN(page->definitions,
                      TakeLevels(header.definition_encoding, column_.definition_max, &bytes));
  return OpenValues(header, bytes, page);
}

absl::Status PageStream::OpenDataV2(const PageHeader& header, PageEntries* page) {
  const absl::string_view stored = stored_;
  const auto repetitions = static_cast<size_t>(header.repetition_bytes);
  const auto levels = repetitions + static_cast<size_t>(header.definition_bytes);
  page->repetitions = RunDecoder(stored.substr(0, repetitions), WidthOf(column_.repetition_max));
  page->definitions =
      RunDecoder(stored.substr(repetitions, levels - repetitions), WidthOf(column_.definition_max));
  const size_t bytes = static_cast<size_t>(header.bytes) - levels;
  const absl::string_view values = stored.substr(levels);
  if (bytes == 0) {  // All entries are null. What a codec makes of no bytes is no value.
    return OpenValues(header, "", page);
  }
  if (!header.is_compressed || chunk_.codec == Codec::kUncompressed) {
    return OpenValues(header, values, page);
  }
  DT_RETURN_IF_ERROR(Decompress(chunk_.codec, values, bytes, &decompressed_));
  return OpenValues(header, decompressed_, page);
}

absl::Status PageStream::OpenValues(const PageHeader& header, absl::string_view bytes,
                                    PageEntries* page) {
  DT_ASSIGN_OR_RETURN(page->values, MakeValueDecoder(column_.type, header.encoding, bytes,
                                                     has_dictionary_ ? &dictionary_ : nullptr));
  return absl::OkStatus();
}

}  // namespace dtrain::plan::parquet
