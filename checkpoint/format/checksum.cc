#define XXH_INLINE_ALL
#include "checkpoint/format/checksum.h"

#include <xxhash.h>

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/crc32c.h"

namespace dtrain::checkpoint {
namespace {

std::string Hex(const XXH128_hash_t& hash) {
  return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
}

}  // namespace

struct FileChecksummer::Hash {
  XXH3_state_t state;
};

FileChecksummer::FileChecksummer() : hash_(std::make_unique<Hash>()) {
  XXH3_128bits_reset(&hash_->state);
}
FileChecksummer::FileChecksummer(FileChecksummer&&) noexcept = default;
FileChecksummer& FileChecksummer::operator=(FileChecksummer&&) noexcept = default;
FileChecksummer::~FileChecksummer() = default;

void FileChecksummer::Add(absl::Span<const std::byte> data) {
  while (!data.empty()) {
    const uint64_t room = kBlockBytes - result_.bytes % kBlockBytes;
    const size_t n = std::min({static_cast<size_t>(room), kSliceBytes, data.size()});
    XXH3_128bits_update(&hash_->state, data.data(), n);
    block_crc_ = Crc32c(data.data(), n, block_crc_);
    result_.bytes += n;
    if (n == room) {
      result_.crc32c.push_back(block_crc_);
      block_crc_ = 0;
    }
    data.remove_prefix(n);
  }
}

FileChecksum FileChecksummer::Finish() {
  if (result_.bytes % kBlockBytes != 0) {
    result_.crc32c.push_back(block_crc_);
  }
  result_.xxh3_128 = Hex(XXH3_128bits_digest(&hash_->state));
  return std::move(result_);
}

std::string TextHash(absl::string_view text) { return Hex(XXH3_128bits(text.data(), text.size())); }

}  // namespace dtrain::checkpoint
