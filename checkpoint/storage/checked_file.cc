#include "checkpoint/storage/checked_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/crc32c.h"
#include "base/status.h"
#include "checkpoint/storage/block_reader.h"

namespace dtrain::checkpoint {

absl::Status CheckBlock(const FileChecksum& expected, uint64_t block,
                        absl::Span<const std::byte> bytes, const std::string& display_name) {
  return CheckBlockCrc(expected, block, bytes.size(), Crc32c(bytes.data(), bytes.size()),
                       display_name);
}

absl::Status CheckBlockCrc(const FileChecksum& expected, uint64_t block, uint64_t bytes,
                           uint32_t crc, const std::string& display_name) {
  if (crc != expected.crc32c[block]) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s is damaged: bytes %d to %d have CRC-32C %08x, the manifest says %08x", display_name,
        block * kBlockBytes, block * kBlockBytes + bytes, crc, expected.crc32c[block]));
  }
  return absl::OkStatus();
}

CheckedFile::CheckedFile(std::unique_ptr<ReadableFile> file, FileChecksum expected,
                         std::string display_name)
    : file_(std::move(file)),
      expected_(std::move(expected)),
      display_name_(std::move(display_name)) {}

absl::Status CheckedFile::ReadBlock(uint64_t block, absl::Span<std::byte> into) const {
  DT_RETURN_IF_ERROR(file_->ReadAt(block * kBlockBytes, into));
  return CheckBlock(expected_, block, into, display_name_);
}

absl::Status CheckedFile::ReadBlocks(uint64_t first, absl::Span<std::byte> into, bool more) const {
  const uint64_t count = (into.size() + kBlockBytes - 1) / kBlockBytes;
  return ForEachAtOnce(count, [&](uint64_t i) {
    if (more) {
      file_->ReadAhead((first + i + kReaders) * kBlockBytes, kBlockBytes);
    }
    return ReadBlock(first + i, into.subspan(i * kBlockBytes, kBlockBytes));
  });
}

absl::Status CheckedFile::ReadAt(uint64_t offset, absl::Span<std::byte> into) const {
  if (offset > expected_.bytes || into.size() > expected_.bytes - offset) {
    return absl::OutOfRangeError(absl::StrFormat("%s has %d bytes; %d from %d were wanted",
                                                 display_name_, expected_.bytes, into.size(),
                                                 offset));
  }
  const std::lock_guard lock(mutex_);
  const bool more = offset == end_;  // Tensors are mostly read one after the other.
  end_ = offset + into.size();
  while (!into.empty()) {
    const uint64_t block = offset / kBlockBytes;
    const uint64_t within = offset % kBlockBytes;
    const size_t block_bytes =
        std::min<uint64_t>(kBlockBytes, expected_.bytes - block * kBlockBytes);
    size_t n = std::min<size_t>(into.size(), block_bytes - within);
    if (n == block_bytes) {  // Whole blocks are wanted, so they need no copy.
      n = into.size() / kBlockBytes >= kSharedBlocksMin ? into.size() / kBlockBytes * kBlockBytes
                                                        : n;
      DT_RETURN_IF_ERROR(ReadBlocks(block, into.subspan(0, n), more));
    } else {
      if (cache_.size() != block_bytes || cached_block_ != block) {
        if (more) {
          file_->ReadAhead((block + 1) * kBlockBytes, kReaders * kBlockBytes);
        }
        cache_.resize(block_bytes);
        if (absl::Status status = ReadBlock(block, absl::MakeSpan(cache_)); !status.ok()) {
          cache_.clear();
          return status;
        }
        cached_block_ = block;
      }
      std::memcpy(into.data(), cache_.data() + within, n);
    }
    offset += n;
    into.remove_prefix(n);
  }
  return absl::OkStatus();
}

}  // namespace dtrain::checkpoint
