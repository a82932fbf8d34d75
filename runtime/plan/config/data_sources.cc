#include "runtime/plan/config/data_sources.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/plan/config/config_keys.h"

namespace dtrain::plan {
namespace {

constexpr char kWant[] =
    "want a list of paths, or of parts {\"files\": [PATH, ...], \"weight\": NUMBER}";

bool IsName(const Json& value) {
  return value.is_string() && !value.get_ref<const std::string&>().empty();
}

bool AreNames(const Json& value) {
  return value.is_array() && std::all_of(value.begin(), value.end(), IsName);
}

absl::StatusOr<Json> CheckPart(const std::string& where, const Json& part) {
  Json files;
  double weight = 1;
  for (const auto& [name, value] : part.items()) {
    if (name == "files") {
      files = value.is_string() ? Json::array({value}) : value;
    } else if (name != "weight") {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s has an unknown member \"%s\"; it may have \"files\" and \"weight\"", where, name));
    } else if (!value.is_number() || !std::isfinite(value.get<double>()) ||
               value.get<double>() < 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s has the weight %s; want a number, 0 or more", where, ShortJson(value)));
    } else {
      weight = value.get<double>();
    }
  }
  if (!AreNames(files) || files.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s has %s as \"files\"; want one or more paths or patterns", where, ShortJson(files)));
  }
  return Json{{"files", std::move(files)}, {"weight", weight}};
}

}  // namespace

absl::StatusOr<Json> CheckDataSources(const char* key, const Json& value) {
  if (value.is_string() && IsName(value)) {
    return Json::array({value});
  }
  if (AreNames(value)) {
    return value;
  }
  const bool are_parts =
      value.is_array() &&
      std::all_of(value.begin(), value.end(), [](const Json& item) { return item.is_object(); });
  if (!are_parts) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is %s; %s", key, ShortJson(value), kWant));
  }
  Json parts = Json::array();
  double sum = 0;
  for (const Json& item : value) {
    DT_ASSIGN_OR_RETURN(Json part, CheckPart(absl::StrFormat("%s[%d]", key, parts.size()), item));
    sum += part["weight"].get<double>();
    parts.push_back(std::move(part));
  }
  if (!(sum > 0) || !std::isfinite(sum)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: the weights of its %d parts sum to %g; at least one must be above 0",
                        key, parts.size(), sum));
  }
  return parts;
}

std::vector<DataPart> DataParts(const Json& checked) {
  if (AreNames(checked)) {
    return {{checked.get<std::vector<std::string>>(), 1}};
  }
  std::vector<DataPart> parts;
  for (const Json& part : checked) {
    parts.push_back(
        {part.at("files").get<std::vector<std::string>>(), part.at("weight").get<double>()});
  }
  return parts;
}

}  // namespace dtrain::plan
