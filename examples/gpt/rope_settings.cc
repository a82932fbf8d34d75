#include "gpt/rope_settings.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gpt/config_reader.h"

namespace {

using dtrain::Json;

constexpr const char* kPlain[] = {"rope_theta", "partial_rotary_factor"};
constexpr const char* kObjects[] = {"rope_scaling", "rope_parameters"};

struct Setting {
  std::string key;  // The way it is written: "rope_parameters.rope_theta".
  Json value;
};
using Settings = std::map<std::string, Setting>;  // By today's name: "rope_theta", "rope_type".

bool Has(const Json& json, const char* key) {
  return json.contains(key) && !json.at(key).is_null();
}

// The settings of one document, except those that `without` has.
absl::StatusOr<Settings> SettingsOf(const Json& json, const std::string& where,
                                    const Settings& without = {}) {
  Settings found;
  absl::Status status;
  const auto add = [&](const std::string& name, const std::string& key, const Json& value) {
    if (value.is_null() || without.count(name) > 0) {
      return;
    }
    const auto [other, is_new] = found.emplace(name, Setting{key, value});
    if (!is_new && other->second.value != value && status.ok()) {
      status = absl::InvalidArgumentError(absl::StrFormat(
          "%s.%s is %s and %s.%s is %s: they are two names of one setting; remove one of them",
          where, other->second.key, other->second.value.dump(), where, key, value.dump()));
    }
  };
  for (const char* const key : kPlain) {
    add(key, key, json.value(key, Json()));
  }
  for (const char* const object : kObjects) {
    if (!Has(json, object)) {
      continue;
    }
    if (!json.at(object).is_object()) {
      return absl::InvalidArgumentError(absl::StrFormat("%s.%s is %s; allowed: an object", where,
                                                        object, json.at(object).dump()));
    }
    for (const auto& [name, value] : json.at(object).items()) {
      add(name == "type" ? "rope_type" : name, absl::StrCat(object, ".", name), value);
    }
  }
  if (!status.ok()) {
    return status;
  }
  return found;
}

// The rope_type of a document, in any spelling; "default" if the document has none.
Json TypeIn(const Json& document) {
  for (const char* const object : kObjects) {
    for (const char* const name : {"rope_type", "type"}) {
      if (Has(document, object) && Has(document.at(object), name)) {
        return document.at(object).at(name);
      }
    }
  }
  return "default";
}

void KeepPlain(Settings& settings) {
  for (auto it = settings.begin(); it != settings.end();) {
    const bool plain =
        std::find(std::begin(kPlain), std::end(kPlain), it->first) != std::end(kPlain);
    it = plain ? std::next(it) : settings.erase(it);
  }
}

}  // namespace

bool IsRopeKey(const std::string& key) {
  return std::find(std::begin(kPlain), std::end(kPlain), key) != std::end(kPlain) ||
         std::find(std::begin(kObjects), std::end(kObjects), key) != std::end(kObjects);
}

void ReadRope(ConfigReader& reader, int64_t positions, RopeOptions& into) {
  reader.Positive("rope_theta", into.theta);
  reader.Only("partial_rotary_factor", 1.0);
  Json given = Json::object();
  for (const char* const key :
       {"rope_theta", "partial_rotary_factor", "rope_scaling", "rope_parameters"}) {
    given[key] = reader.Take(key);
  }
  const absl::StatusOr<Settings> settings = SettingsOf(given, reader.where());
  if (!settings.ok()) {
    return reader.Fail(settings.status());
  }
  Json object = Json::object();
  for (const auto& [name, setting] : *settings) {
    object[name] = setting.value;
  }
  if (!Has(given, "rope_scaling") && !Has(given, "rope_parameters")) {
    return;
  }
  ConfigReader in(
      object, absl::StrCat(reader.where(),
                           Has(given, "rope_parameters") ? ".rope_parameters" : ".rope_scaling"));
  in.Choice("rope_type",
            {{"default", RopeOptions::Scaling::kNone},
             {"linear", RopeOptions::Scaling::kLinear},
             {"llama3", RopeOptions::Scaling::kLlama3}},
            into.scaling);
  in.Positive("rope_theta", into.theta);
  in.Only("partial_rotary_factor", 1.0);
  if (into.scaling != RopeOptions::Scaling::kNone) {
    in.Require("factor");
    in.Positive("factor", into.factor);
  }
  if (into.scaling == RopeOptions::Scaling::kLlama3) {
    in.Require("low_freq_factor");
    in.Require("high_freq_factor");
    in.Positive("low_freq_factor", into.low_freq_factor);
    in.Positive("high_freq_factor", into.high_freq_factor);
    into.original_max_position_embeddings = positions;
  }
  in.Integer("original_max_position_embeddings", into.original_max_position_embeddings);
  reader.Fail(in.Finish());
}

absl::StatusOr<Json> WithRopeOf(const Json& given, Json file, const std::string& where) {
  DT_ASSIGN_OR_RETURN(const Settings changes, SettingsOf(given, "model"));
  DT_ASSIGN_OR_RETURN(Settings all, SettingsOf(file, where, changes));
  const bool is_cleared = std::any_of(
      std::begin(kObjects), std::end(kObjects),
      [&](const char* object) { return given.contains(object) && given.at(object).is_null(); });
  if (is_cleared || (changes.count("rope_type") > 0 && TypeIn(given) != TypeIn(file))) {
    KeepPlain(all);
  }
  for (const char* const key : kPlain) {
    if (given.contains(key) && given.at(key).is_null()) {
      all.erase(key);
    }
  }
  for (const auto& [name, setting] : changes) {
    all.insert_or_assign(name, setting);
  }
  for (const char* const key :
       {"rope_theta", "partial_rotary_factor", "rope_scaling", "rope_parameters"}) {
    file.erase(key);
  }
  // Messages name the object by the spelling of the change.
  const char* const object = Has(given, "rope_scaling") && !Has(given, "rope_parameters")
                                 ? "rope_scaling"
                                 : "rope_parameters";
  for (const auto& [name, setting] : all) {
    (IsRopeKey(name) ? file[name] : file[object][name]) = setting.value;
  }
  return file;
}
