// The checksums of a checkpoint file, computed while its bytes pass: CRC-32C of each 4 MiB block
// and XXH3-128 of the whole. They find accidents, not attackers.
//
// A value type; not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace dtrain::checkpoint {

inline constexpr uint64_t kBlockBytes = 4 << 20;
// Bytes that several passes take one after the other while a core's cache holds them.
inline constexpr size_t kSliceBytes = 128 << 10;

struct FileChecksum {
  uint64_t bytes = 0;
  std::string xxh3_128;          // 32 hex digits.
  std::vector<uint32_t> crc32c;  // One for each block; the last block may be shorter.

  bool operator==(const FileChecksum&) const = default;
};

class FileChecksummer {
 public:
  FileChecksummer();
  FileChecksummer(FileChecksummer&&) noexcept;
  FileChecksummer& operator=(FileChecksummer&&) noexcept;
  ~FileChecksummer();
  void Add(absl::Span<const std::byte> data);
  // CRC-32C of the blocks that are whole, in order.
  const std::vector<uint32_t>& blocks() const { return result_.crc32c; }
  FileChecksum Finish();

 private:
  struct Hash;
  std::unique_ptr<Hash> hash_;
  FileChecksum result_;
  uint32_t block_crc_ = 0;
};

// XXH3-128 of `text` as 32 hex digits (canonical, big-endian).
std::string TextHash(absl::string_view text);

}  // namespace dtrain::checkpoint
