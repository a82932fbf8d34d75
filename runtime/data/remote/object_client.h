// The seam between blocks of a corpus and the servers that hold it: ranges of objects, and lists of
// them. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/job_env.h"

namespace dtrain::remote {

// The size and tag that a server gave for an object. An object that changes has another version.
struct ObjectVersion {
  int64_t bytes = 0;
  std::string tag;  // Its ETag, or else when it was last modified; "": the server says neither.
  bool operator==(const ObjectVersion&) const = default;
};

struct ObjectPiece {
  ObjectVersion version;
  int64_t bytes_read = 0;
};

class ObjectClient {
 public:
  virtual ~ObjectClient() = default;
  // Reads what the object has from `offset` on, up to the size of `into`. Blocks; tries again for a
  // while where that may help. NotFound; Unavailable: no reply came in time; Cancelled: `cancelled`
  // has become true; other errors say what to do. Each names the address. REQUIRES: `into` is not
  // empty.
  virtual absl::StatusOr<ObjectPiece> Read(const std::string& address, int64_t offset,
                                           absl::Span<std::byte> into,
                                           const std::atomic<bool>* cancelled) = 0;
  // The addresses that match `pattern`, sorted by bytes; itself alone where it is no pattern.
  virtual absl::StatusOr<std::vector<std::string>> Expand(const std::string& pattern) = 0;
};

struct ClientOptions {
  absl::Duration timeout = absl::Seconds(60);  // For a read with all its tries.
  absl::Duration backoff_first = absl::Milliseconds(100);
  absl::Duration backoff_max = absl::Seconds(2);
  Environment environment;
  Clock* clock = &Clock::Real();
};

// A client for s3://, https:// and http:// addresses. Unimplemented: this build or machine has no
// libcurl.
absl::StatusOr<std::unique_ptr<ObjectClient>> MakeObjectClient(const ClientOptions& options);

}  // namespace dtrain::remote
