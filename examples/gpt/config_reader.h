// Reads the keys of one JSON object, remembers which were read and the first error. Not
// thread-safe.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "dtrain/dtrain.h"

// A key that is absent or null leaves its target as it is. After an error nothing more is read.
class ConfigReader {
 public:
  // `where` begins messages: "model". REQUIRES: `json` outlives this object.
  ConfigReader(const dtrain::Json& json, std::string where);

  bool has(const std::string& key) const;  // Present and not null.
  const std::string& where() const { return where_; }
  const absl::Status& status() const { return status_; }

  void Integer(const std::string& key, int64_t& into);  // Above 0.
  void Positive(const std::string& key, double& into);  // Above 0.
  void Share(const std::string& key, double& into);     // From 0 to below 1.
  void Boolean(const std::string& key, bool& into);
  template <typename Enum>
  void Choice(const std::string& key, const std::map<std::string, Enum>& choices, Enum& into) {
    std::vector<std::string> names;
    for (const auto& [name, value] : choices) {
      names.push_back(name);
    }
    if (const int found = ChoiceIndex(key, names); found >= 0) {
      into = choices.at(names[static_cast<size_t>(found)]);
    }
  }
  // InvalidArgument unless `key` is there.
  void Require(const std::string& key);
  // Unimplemented unless `key` is absent, null or `value`.
  void Only(const std::string& key, const dtrain::Json& value);
  // The value, marked as read; null when it is absent.
  dtrain::Json Take(const std::string& key);
  void Ignore(const std::string& key) { read_.insert(key); }
  void Fail(absl::Status status);

  // The first error, else InvalidArgument naming a key that nothing read and that is not null.
  absl::Status Finish() const;

 private:
  int ChoiceIndex(const std::string& key, const std::vector<std::string>& names);
  void Refuse(const std::string& key, absl::string_view allowed);

  const dtrain::Json& json_;
  const std::string where_;
  std::set<std::string> read_;
  absl::Status status_;
};
