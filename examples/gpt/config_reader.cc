#include "gpt/config_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

ConfigReader::ConfigReader(const dtrain::Json& json, std::string where)
    : json_(json), where_(std::move(where)) {
  if (!json_.is_object()) {
    Fail(absl::InvalidArgumentError(absl::StrCat(where_, " must be a JSON object")));
  }
}

bool ConfigReader::has(const std::string& key) const {
  return json_.is_object() && json_.contains(key) && !json_.at(key).is_null();
}

void ConfigReader::Fail(absl::Status status) {
  if (status_.ok()) {
    status_ = std::move(status);
  }
}

void ConfigReader::Refuse(const std::string& key, absl::string_view allowed) {
  Fail(absl::InvalidArgumentError(
      absl::StrCat(where_, ".", key, " is ", json_.at(key).dump(), "; allowed: ", allowed)));
}

dtrain::Json ConfigReader::Take(const std::string& key) {
  read_.insert(key);
  return has(key) ? json_.at(key) : dtrain::Json();
}

void ConfigReader::Integer(const std::string& key, int64_t& into) {
  const dtrain::Json value = Take(key);
  if (value.is_null()) {
    return;
  }
  const auto number = dtrain::JsonInteger(value);
  if (!number.ok() || *number < 1 || *number > (int64_t{1} << 40)) {
    return Refuse(key, "an integer from 1 to 2^40");
  }
  into = *number;
}

void ConfigReader::Positive(const std::string& key, double& into) {
  const dtrain::Json value = Take(key);
  if (value.is_null()) {
    return;
  }
  if (!value.is_number() || !(value.get<double>() > 0)) {
    return Refuse(key, "a number above 0");
  }
  into = value.get<double>();
}

void ConfigReader::Share(const std::string& key, double& into) {
  const dtrain::Json value = Take(key);
  if (value.is_null()) {
    return;
  }
  if (!value.is_number() || !(value.get<double>() >= 0) || !(value.get<double>() < 1)) {
    return Refuse(key, "a number from 0 to below 1");
  }
  into = value.get<double>();
}

void ConfigReader::Boolean(const std::string& key, bool& into) {
  const dtrain::Json value = Take(key);
  if (value.is_null()) {
    return;
  }
  if (!value.is_boolean()) {
    return Refuse(key, "true or false");
  }
  into = value.get<bool>();
}

int ConfigReader::ChoiceIndex(const std::string& key, const std::vector<std::string>& names) {
  const dtrain::Json value = Take(key);
  if (value.is_null()) {
    return -1;
  }
  const auto found = value.is_string()
                         ? std::find(names.begin(), names.end(), value.get<std::string>())
                         : names.end();
  if (found == names.end()) {
    Fail(absl::UnimplementedError(
        absl::StrCat(where_, ".", key, " ", value.dump(),
                     " is not supported; allowed: ", absl::StrJoin(names, ", "))));
    return -1;
  }
  return static_cast<int>(found - names.begin());
}

void ConfigReader::Require(const std::string& key) {
  if (!has(key)) {
    Fail(absl::InvalidArgumentError(absl::StrCat(where_, " lacks the key ", key)));
  }
}

void ConfigReader::Only(const std::string& key, const dtrain::Json& value) {
  const dtrain::Json found = Take(key);
  if (!found.is_null() && found != value) {
    Fail(absl::UnimplementedError(absl::StrCat(where_, ".", key, " ", found.dump(),
                                               " is not supported; allowed: ", value.dump())));
  }
}

absl::Status ConfigReader::Finish() const {
  if (!status_.ok()) {
    return status_;
  }
  for (const auto& [key, value] : json_.items()) {
    if (!value.is_null() && read_.count(key) == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "unknown key ", where_, ".", key, " (", value.dump().substr(0, 60),
          "): dtrain does not know whether it changes the model; remove it if it does not. Known: ",
          absl::StrJoin(read_, ", ")));
    }
  }
  return absl::OkStatus();
}
