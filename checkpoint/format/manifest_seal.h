// The last line of a manifest: the hash of all bytes before it. Pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace dtrain::checkpoint {

// `body`, an object's text up to and including ",\n", followed by the line of the hash and the
// closing brace.
std::string SealManifest(absl::string_view body);

// InvalidArgument unless `text` ends in the hash of the bytes before it.
absl::Status CheckManifestSeal(absl::string_view text);

}  // namespace dtrain::checkpoint
