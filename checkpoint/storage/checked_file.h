// A file whose every block is checked against its CRC-32C when it is read. Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/format/checksum.h"
#include "checkpoint/storage/storage.h"

namespace dtrain::checkpoint {

// InvalidArgument names the file, the bytes and both values unless `bytes` are block `block` of a
// file with these checksums.
absl::Status CheckBlock(const FileChecksum& expected, uint64_t block,
                        absl::Span<const std::byte> bytes, const std::string& display_name);
// The same for a block of `bytes` bytes whose CRC-32C is `crc`.
absl::Status CheckBlockCrc(const FileChecksum& expected, uint64_t block, uint64_t bytes,
                           uint32_t crc, const std::string& display_name);

class CheckedFile final : public ReadableFile {
 public:
  // REQUIRES: expected.crc32c has one value a block.
  CheckedFile(std::unique_ptr<ReadableFile> file, FileChecksum expected, std::string display_name);

  uint64_t bytes() const override { return expected_.bytes; }
  // InvalidArgument names the file and the block that differs.
  absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> into) const override;

 private:
  absl::Status ReadBlock(uint64_t block, absl::Span<std::byte> into) const;
  // Many are read and checked on several threads. `more`: what follows them is wanted soon.
  absl::Status ReadBlocks(uint64_t first, absl::Span<std::byte> into, bool more) const;

  const std::unique_ptr<ReadableFile> file_;
  const FileChecksum expected_;
  const std::string display_name_;
  mutable std::mutex mutex_;
  mutable std::vector<std::byte> cache_;  // The last block that was read in part.
  mutable uint64_t cached_block_ = 0;
  mutable uint64_t end_ = 0;  // The last read ended there.
};

}  // namespace dtrain::checkpoint
