// JSON with the guards that dtrain needs: comments allowed, duplicate keys refused, bounded depth,
// syntax errors with line and column, non-finite numbers as strings.
//
// Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace dtrain {

// Keys keep their order of insertion, so the same values give the same file.
using Json = nlohmann::ordered_json;

// Parses `text`; // and /* */ comments are allowed. Errors (InvalidArgument) read
// "FILE:LINE:COLUMN: what". Refuses duplicate keys, depth above 64 and bytes after the document.
absl::StatusOr<Json> ParseJson(absl::string_view text, absl::string_view file_name);

// One line without spaces, or indented by `indent` when > 0. NaN and infinities become the strings
// "NaN", "Infinity", "-Infinity" (plain JSON has no spelling for them).
std::string DumpJson(const Json& json, int indent = 0);

// The integer in `json`; 5e8 counts as an integer when it is integral and below 2^53.
absl::StatusOr<int64_t> JsonInteger(const Json& json);

}  // namespace dtrain
