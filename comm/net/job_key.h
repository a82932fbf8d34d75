// The job's secret: 32 random bytes that every agent and rank holds, and the keys derived from it.
//
// Values; copies are independent and each is overwritten with zeros when it dies. Nothing here
// prints a key. Thread-safe as any value: concurrent reads are fine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/unique_fd.h"

namespace dtrain::comm {

// 32 secret bytes, zeroed on destruction.
class SecretKey {
 public:
  static constexpr size_t kBytes = 32;
  SecretKey() { bytes_.fill(0); }
  explicit SecretKey(absl::Span<const uint8_t> bytes);  // REQUIRES: bytes.size() == kBytes.
  SecretKey(const SecretKey&) = default;
  SecretKey& operator=(const SecretKey&) = default;
  ~SecretKey();

  absl::Span<const uint8_t> bytes() const { return bytes_; }
  uint8_t* data() { return bytes_.data(); }
  // Takes the same time wherever the first difference is.
  friend bool operator==(const SecretKey& a, const SecretKey& b);

 private:
  std::array<uint8_t, kBytes> bytes_;
};

// Compares in constant time; false when the sizes differ.
bool ConstantTimeEqual(absl::Span<const uint8_t> a, absl::Span<const uint8_t> b);

// Fills `out` from getrandom(2).
absl::Status RandomBytes(absl::Span<uint8_t> out);

// HMAC-SHA-256 (RFC 2104) of the concatenated parts.
std::array<uint8_t, 32> HmacSha256(const SecretKey& key,
                                   std::initializer_list<absl::Span<const uint8_t>> parts);

class JobKey {
 public:
  static absl::StatusOr<JobKey> Generate();
  static absl::StatusOr<JobKey> FromBytes(absl::Span<const uint8_t> bytes);
  // Reads 32 bytes from an inherited descriptor (a pipe or a file) and closes it.
  static absl::StatusOr<JobKey> FromFd(int fd);
  // Reads a file of 32 raw bytes or 64 hex digits (a final newline is allowed). PermissionDenied
  // unless it is a regular file of this user that nobody else may open (mode 0600 or 0400).
  static absl::StatusOr<JobKey> FromFile(const std::string& path);
  // From `token_fd` when >= 0, else from `token_file` when not empty, else FailedPrecondition that
  // names both ways. The values of base/job_env.h fit.
  static absl::StatusOr<JobKey> Load(int token_fd, const std::string& token_file);

  // Creates `path` exclusively, mode 0600, with 64 hex digits. AlreadyExists when it is there.
  absl::Status WriteFile(const std::string& path) const;
  // For an agent's stdin. Never log or export them.
  absl::Span<const uint8_t> secret_bytes() const { return token_.bytes(); }

  // HKDF-SHA-256 (RFC 5869) of the token for one purpose.
  SecretKey Derive(absl::string_view purpose) const;
  // The pre-shared key of the control channel, and the name under which a client offers it
  // (derived too: it tells nothing about the token).
  SecretKey TlsPsk() const;
  std::string Identity() const;
  // The key of the data connections between two ranks in one epoch; the order does not matter.
  SecretKey PairKey(uint64_t epoch, int rank_a, int rank_b) const;

  friend bool operator==(const JobKey& a, const JobKey& b) { return a.token_ == b.token_; }

 private:
  explicit JobKey(const SecretKey& token) : token_(token) {}
  SecretKey token_;
};

}  // namespace dtrain::comm
