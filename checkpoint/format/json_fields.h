// Strict reading of a JSON object: every key is read with its type and range, and none is left
// over.
//
// A short-lived reader over a Json that outlives it. Errors (InvalidArgument) name the object and
// the key. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/json.h"

namespace dtrain::checkpoint {

class JsonFields {
 public:
  JsonFields(const Json& json, absl::string_view what) : json_(json), what_(what) {}

  absl::StatusOr<const Json*> Any(absl::string_view key);
  absl::StatusOr<std::string> String(absl::string_view key);
  absl::StatusOr<int64_t> Integer(absl::string_view key, int64_t low, int64_t high);
  absl::StatusOr<Json> Object(absl::string_view key);
  absl::StatusOr<const Json*> Array(absl::string_view key);
  absl::StatusOr<std::vector<int64_t>> Integers(absl::string_view key, int64_t low);
  // InvalidArgument when the object has keys that were not read.
  absl::Status Finish() const;

 private:
  const Json& json_;
  const absl::string_view what_;
  std::vector<std::string> asked_;
};

// The integers in a JSON array, each at least `low`.
absl::StatusOr<std::vector<int64_t>> JsonIntegers(const Json& json, absl::string_view what,
                                                  int64_t low);

}  // namespace dtrain::checkpoint
