#include "checkpoint/journal/segment_writer.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/crc32c.h"
#include "base/status.h"
#include "checkpoint/format/checksum.h"

namespace dtrain::checkpoint {
namespace {

absl::Span<const std::byte> Bytes(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::vector<uint32_t> BlockChecksums(absl::Span<const std::byte> data) {
  std::vector<uint32_t> checksums;
  for (size_t begin = 0; begin < data.size(); begin += kBlockBytes) {
    checksums.push_back(
        Crc32c(data.data() + begin, std::min<size_t>(kBlockBytes, data.size() - begin)));
  }
  return checksums;
}

Json TextOf(const JournalStep& step) {
  Json text = {{"end", step.end}, {"after", nullptr}, {"blobs", Json::array()}};
  if (step.after != nullptr) {
    text["after"] = step.after->state;
    for (const JournalBlob& blob : step.after->blobs) {
      text["blobs"].push_back({blob.name, blob.bytes.size()});
    }
  }
  return text;
}

// Spaces behind the text with which a gradient that follows `bytes` bytes begins where it need not
// be copied. Small ones are copied.
size_t SpacesBefore(uint64_t bytes, absl::Span<const std::byte> gradient) {
  return gradient.size() < kBlockBytes ? 0
                                       : (kHeldAlignment - bytes % kHeldAlignment) % kHeldAlignment;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SegmentWriter>> SegmentWriter::Create(Storage& storage,
                                                                     const SegmentHeader& header) {
  const std::string folder = SegmentFolder(header.id);
  DT_RETURN_IF_ERROR(storage.MakeDirectory(folder));
  DT_ASSIGN_OR_RETURN(auto file,
                      // Room for one step: files of this size go around the page cache, in which
                      // each step's gradient would be copied and then waited for.
                      storage.CreateFile(SegmentPath(header.id, header.rank, header.world_size),
                                         header.gradient_bytes(), Access::kOwner));
  const std::string start = EncodeHeader(header);
  DT_RETURN_IF_ERROR(file->Append(Bytes(start)));
  DT_RETURN_IF_ERROR(file->Sync());
  DT_RETURN_IF_ERROR(storage.SyncDirectory(folder));
  return std::unique_ptr<SegmentWriter>(new SegmentWriter(std::move(file), start.size()));
}

absl::Status SegmentWriter::Append(const JournalStep& step) {
  std::string text = DumpJson(TextOf(step));
  if (text.size() > kRecordTextBytesMax - kHeldAlignment) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("the states that the program tracks take %d bytes as JSON; a journal's "
                        "record has room for %d",
                        text.size(), kRecordTextBytesMax - kHeldAlignment));
  }
  const std::vector<uint32_t> blocks = BlockChecksums(step.gradient);
  RecordHead head{.step = step.step,
                  .text_bytes = text.size(),
                  .gradient_bytes = step.gradient.size(),
                  .blocks_crc = Crc32c(blocks.data(), blocks.size() * sizeof(uint32_t)),
                  .has_after = step.after != nullptr};
  if (step.after != nullptr) {
    for (const JournalBlob& blob : step.after->blobs) {
      head.blob_bytes += blob.bytes.size();
      head.blob_crc = Crc32c(blob.bytes.data(), blob.bytes.size(), head.blob_crc);
    }
  }
  text.append(SpacesBefore(bytes_ + head.bytes() - head.gradient_bytes, step.gradient), ' ');
  head.text_bytes = text.size();
  head.text_crc = Crc32c(text.data(), text.size());
  std::string front;  // All but the gradient: small, unless the program tracks tensors.
  const auto add = [&front](const void* data, size_t bytes) {
    front.append(static_cast<const char*>(data), bytes);
  };
  front.reserve(head.bytes() - head.gradient_bytes);
  const auto encoded = EncodeHead(head);
  add(encoded.data(), encoded.size());
  add(blocks.data(), blocks.size() * sizeof(uint32_t));
  add(text.data(), text.size());
  for (size_t i = 0; step.after != nullptr && i < step.after->blobs.size(); ++i) {
    add(step.after->blobs[i].bytes.data(), step.after->blobs[i].bytes.size());
  }
  DT_RETURN_IF_ERROR(file_->Append(Bytes(front)));
  DT_RETURN_IF_ERROR(file_->AppendHeld(step.gradient));
  DT_RETURN_IF_ERROR(file_->Sync());
  bytes_ += head.bytes();
  return absl::OkStatus();
}

}  // namespace dtrain::checkpoint
