// The address of a folder in an object store. Pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace dtrain::checkpoint::s3 {

struct S3Url {
  std::string bucket;
  std::string prefix;  // Without '/' at its ends; "" for the whole bucket.
};

// Splits "s3://bucket/some/prefix/". InvalidArgument: a name that S3 does not allow for a bucket,
// or a prefix with empty, "." or ".." parts or control characters.
absl::StatusOr<S3Url> ParseS3Url(const std::string& url);

}  // namespace dtrain::checkpoint::s3
