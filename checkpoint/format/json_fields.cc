#include "checkpoint/format/json_fields.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace dtrain::checkpoint {

absl::StatusOr<const Json*> JsonFields::Any(absl::string_view key) {
  asked_.emplace_back(key);
  if (!json_.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(what_, " must be an object"));
  }
  const auto found = json_.find(asked_.back());
  if (found == json_.end()) {
    return absl::InvalidArgumentError(absl::StrCat(what_, ": key \"", key, "\" is missing"));
  }
  return &*found;
}

absl::StatusOr<std::string> JsonFields::String(absl::string_view key) {
  DT_ASSIGN_OR_RETURN(const Json* value, Any(key));
  if (!value->is_string()) {
    return absl::InvalidArgumentError(absl::StrCat(what_, ": \"", key, "\" must be a string"));
  }
  return value->get<std::string>();
}

absl::StatusOr<int64_t> JsonFields::Integer(absl::string_view key, int64_t low, int64_t high) {
  DT_ASSIGN_OR_RETURN(const Json* value, Any(key));
  const absl::StatusOr<int64_t> number = JsonInteger(*value);
  if (!number.ok() || *number < low || *number > high) {
    return absl::InvalidArgumentError(absl::StrCat(what_, ": \"", key, "\" is ", DumpJson(*value),
                                                   "; an integer from ", low, " to ", high,
                                                   " is needed"));
  }
  return *number;
}

absl::StatusOr<Json> JsonFields::Object(absl::string_view key) {
  DT_ASSIGN_OR_RETURN(const Json* value, Any(key));
  if (!value->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(what_, ": \"", key, "\" must be an object"));
  }
  return *value;
}

absl::StatusOr<const Json*> JsonFields::Array(absl::string_view key) {
  DT_ASSIGN_OR_RETURN(const Json* value, Any(key));
  if (!value->is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(what_, ": \"", key, "\" must be an array"));
  }
  return value;
}

absl::StatusOr<std::vector<int64_t>> JsonFields::Integers(absl::string_view key, int64_t low) {
  DT_ASSIGN_OR_RETURN(const Json* value, Array(key));
  return JsonIntegers(*value, key, low);
}

absl::Status JsonFields::Finish() const {
  if (!json_.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(what_, " must be an object"));
  }
  for (const auto& [key, value] : json_.items()) {
    if (std::find(asked_.begin(), asked_.end(), key) == asked_.end()) {
      return absl::InvalidArgumentError(absl::StrCat(what_, ": key \"", key, "\" is not known"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> JsonIntegers(const Json& json, absl::string_view what,
                                                  int64_t low) {
  if (!json.is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(what, " must be an array of integers"));
  }
  std::vector<int64_t> values;
  for (const Json& element : json) {
    const absl::StatusOr<int64_t> number = JsonInteger(element);
    if (!number.ok() || *number < low) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": ", DumpJson(element), " is no integer of at least ", low));
    }
    values.push_back(*number);
  }
  return values;
}

}  // namespace dtrain::checkpoint
