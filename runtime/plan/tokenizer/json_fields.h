// Reads the fields of an object of a tokenizer's file. Errors name the place; fields that are
// unknown are refused, because a rule that is not followed would give other tokens. Pure.
#pragma once

#include <initializer_list>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/json.h"

namespace dtrain::plan {

// An error unless `json` is an object whose fields are all among `names` and "type".
absl::Status OnlyFields(const Json& json, absl::string_view where,
                        std::initializer_list<absl::string_view> names);

// The value of "type".
absl::StatusOr<std::string> TypeOf(const Json& json, absl::string_view where);

absl::StatusOr<std::string> StringField(const Json& json, absl::string_view where,
                                        const std::string& name);

// `otherwise` if the field is not there or null.
absl::StatusOr<bool> BoolField(const Json& json, absl::string_view where, const std::string& name,
                               bool otherwise);

// An id or another count below 2^31.
absl::StatusOr<uint32_t> CountField(const Json& json, absl::string_view where,
                                    const std::string& name);

// {"String": text} as an escaped pattern, or {"Regex": pattern}.
absl::StatusOr<std::string> PatternField(const Json& json, absl::string_view where);

// The elements of the array `name`.
absl::StatusOr<const Json*> ArrayField(const Json& json, absl::string_view where,
                                       const std::string& name);

}  // namespace dtrain::plan
