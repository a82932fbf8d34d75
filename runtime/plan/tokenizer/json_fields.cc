#include "runtime/plan/tokenizer/json_fields.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/plan/tokenizer/regex.h"

namespace dtrain::plan {
namespace {

absl::Status Wrong(absl::string_view where, absl::string_view name, const char* want) {
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: \"%s\" is missing or wrong; it must be %s", where, name, want));
}

}  // namespace

absl::Status OnlyFields(const Json& json, absl::string_view where,
                        std::initializer_list<absl::string_view> names) {
  if (!json.is_object()) {
    return absl::InvalidArgumentError(absl::StrFormat("%s is not an object", where));
  }
  for (const auto& [key, value] : json.items()) {
    if (key != "type" && std::find(names.begin(), names.end(), key) == names.end()) {
      return absl::UnimplementedError(
          absl::StrFormat("%s: the field \"%s\" is unknown; a newer dtrain may know it", where,
                          key.substr(0, 100)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> TypeOf(const Json& json, absl::string_view where) {
  if (!json.is_object()) {
    return absl::InvalidArgumentError(absl::StrFormat("%s is not an object", where));
  }
  return StringField(json, where, "type");
}

absl::StatusOr<std::string> StringField(const Json& json, absl::string_view where,
                                        const std::string& name) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_string()) {
    return Wrong(where, name, "text");
  }
  return found->get<std::string>();
}

absl::StatusOr<bool> BoolField(const Json& json, absl::string_view where, const std::string& name,
                               bool otherwise) {
  const auto found = json.find(name);
  if (found == json.end() || found->is_null()) {
    return otherwise;
  }
  if (!found->is_boolean()) {
    return Wrong(where, name, "true or false");
  }
  return found->get<bool>();
}

absl::StatusOr<uint32_t> CountField(const Json& json, absl::string_view where,
                                    const std::string& name) {
  const auto found = json.find(name);
  if (found != json.end() && found->is_number_unsigned() && found->get<uint64_t>() <= INT32_MAX) {
    return found->get<uint32_t>();
  }
  return Wrong(where, name, "a whole number from 0 to 2147483647");
}

absl::StatusOr<std::string> PatternField(const Json& json, absl::string_view where) {
  const auto found = json.find("pattern");
  if (found != json.end() && found->is_object() && found->size() == 1) {
    if (const auto regex = found->find("Regex"); regex != found->end() && regex->is_string()) {
      return regex->get<std::string>();
    }
    if (const auto text = found->find("String"); text != found->end() && text->is_string()) {
      return EscapeRegex(text->get_ref<const std::string&>());
    }
  }
  return Wrong(where, "pattern", "{\"String\": text} or {\"Regex\": pattern}");
}

absl::StatusOr<const Json*> ArrayField(const Json& json, absl::string_view where,
                                       const std::string& name) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_array()) {
    return Wrong(where, name, "an array");
  }
  return &*found;
}

}  // namespace dtrain::plan
