// Addresses of data files that are not on this host. Pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace dtrain::plan {

// Whether `path` has a scheme, as "s3://bucket/key" and "https://host/path" have, and so is no path
// of this host.
bool IsRemoteAddress(absl::string_view path);

// "https" of "https://host/path".
absl::string_view SchemeOf(absl::string_view address);

// "https://host" of "https://host/path".
absl::string_view OriginOf(absl::string_view address);

// InvalidArgument: an address with a password or a signature in it, which records of the run would
// show, or of no scheme that is known. Nothing of a secret is repeated.
absl::Status CheckRemoteAddress(const std::string& address);

}  // namespace dtrain::plan
