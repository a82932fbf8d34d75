#include "checkpoint/storage/s3/digest.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "absl/strings/escaping.h"
#include "base/check.h"
#include "base/crc32c.h"

namespace dtrain::checkpoint::s3 {
namespace {

constexpr size_t kSha256Bytes = 32;

}  // namespace

std::string Sha256Hex(absl::Span<const std::byte> data) {
  unsigned char digest[kSha256Bytes];
  unsigned int bytes = 0;
  DT_CHECK(EVP_Digest(data.data(), data.size(), digest, &bytes, EVP_sha256(), nullptr) == 1 &&
           bytes == kSha256Bytes);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest), kSha256Bytes));
}

std::string HmacSha256(absl::string_view key, absl::string_view data) {
  unsigned char digest[kSha256Bytes];
  unsigned int bytes = 0;
  DT_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                reinterpret_cast<const unsigned char*>(data.data()), data.size(), digest,
                &bytes) != nullptr &&
           bytes == kSha256Bytes);
  return std::string(reinterpret_cast<const char*>(digest), kSha256Bytes);
}

std::string Crc32cBase64(absl::Span<const std::byte> data) {
  const uint32_t crc = Crc32c(data.data(), data.size());
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) {
    bytes.push_back(static_cast<char>((crc >> shift) & 0xffU));
  }
  return absl::Base64Escape(bytes);
}

}  // namespace dtrain::checkpoint::s3
