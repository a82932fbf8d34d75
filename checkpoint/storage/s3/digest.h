// SHA-256, HMAC and the text forms of checksums that S3 wants. Pure; on OpenSSL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace dtrain::checkpoint::s3 {

inline absl::Span<const std::byte> BytesOf(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// 64 lower-case hex digits.
std::string Sha256Hex(absl::Span<const std::byte> data);
// 32 raw bytes.
std::string HmacSha256(absl::string_view key, absl::string_view data);
// CRC-32C of `data` as x-amz-checksum-crc32c has it: base64 of the value, highest byte first.
std::string Crc32cBase64(absl::Span<const std::byte> data);

}  // namespace dtrain::checkpoint::s3
