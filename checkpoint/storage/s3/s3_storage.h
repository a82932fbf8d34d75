// Storage in an S3 bucket: MinIO, Ceph, SeaweedFS and others that speak its protocol, or AWS.
//
// A folder is a common prefix of keys, so making, syncing and removing one does nothing. An object
// appears whole when its upload is complete, and is durable then. Files above S3Options::part_bytes
// travel as multipart uploads, whose parts are sent side by side. Publish is a PUT with
// `If-None-Match: *`; a lost reply is resolved by reading the object's nonce back. Data files
// belong to one rank and one save, so CreateFile looks for an object of the name, and does not
// guard against one that appears meanwhile. Reads are ranged GETs.
//
// Thread-safe. Credentials come from the environment, the files of the AWS tools, web identity, a
// container's endpoint or the instance's metadata, and are never part of a message. libcurl is
// opened at the first use; builds without its header have no_s3.cc in place of s3_storage.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/job_env.h"
#include "checkpoint/storage/storage.h"

namespace dtrain::checkpoint {

struct S3Options {
  std::string region;    // "": AWS_REGION, AWS_DEFAULT_REGION, the profile's, else us-east-1.
  std::string endpoint;  // "": AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's, else AWS.
  // Whether the bucket is part of the path or of the host's name. Unset: of the path for an
  // endpoint that was named and for buckets with a dot, else of the host's name.
  std::optional<bool> path_style;
  uint64_t part_bytes = 8 << 20;  // At least 5 MiB, S3's limit. Grows for files above 10,000 parts.
  int parts_at_once = 4;          // A file that is written takes part_bytes times one more than it.
  int tries_max = 10;             // For replies 429 and 5xx, and broken connections.
  absl::Duration backoff_first = absl::Milliseconds(100);  // Doubles; a wait is random up to it.
  absl::Duration backoff_max = absl::Seconds(5);
  absl::Duration connect_timeout = absl::Seconds(5);
  absl::Duration request_timeout = absl::Minutes(2);  // For a request with all its tries.
  std::optional<Environment> environment;             // Unset: that of this process.
  Clock* clock = &Clock::Real();
};

// Whether `text` begins like the address of an object store: "s3://".
bool IsS3Url(const std::string& text);

// Opens the storage below "s3://bucket/prefix" and makes sure that it can be listed; creates
// nothing. Unauthenticated, PermissionDenied, FailedPrecondition (no such bucket, another region,
// the clock is off) say what to do and are not tried again; Unavailable: the endpoint cannot be
// reached; Unimplemented: this build or machine has no libcurl.
absl::StatusOr<std::unique_ptr<Storage>> OpenS3Storage(const std::string& url,
                                                       const S3Options& options);

}  // namespace dtrain::checkpoint
