// Config's descriptions of itself: the values in force, the summary, and the values that must not
// change when a run is resumed.
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "runtime/plan/config/config_keys.h"
#include "runtime/plan/config/config_values.h"
#include "runtime/plan/stable_hash.h"

namespace dtrain {
namespace {

// Objects with sorted keys, so that equal content gives equal text.
nlohmann::json Canonical(const Json& json) { return nlohmann::json::parse(DumpJson(json)); }

const Json* Lookup(const Json& nested, absl::string_view path) {
  const Json* node = &nested;
  for (const absl::string_view part : absl::StrSplit(path, '.')) {
    if (!node->is_object()) {
      return nullptr;
    }
    const auto found = node->find(std::string(part));
    if (found == node->end()) {
      return nullptr;
    }
    node = &*found;
  }
  return node;
}

// The value of one key that a resumed run is compared with. A derived value follows from other keys
// (the run's length among them, which may change), so the rule is compared and not the number. The
// global batch is compared as a number, since it may be derived from the world size.
Json IdentityValue(const Json& in_force, const plan::ConfigKey& key) {
  const Json* value = Lookup(in_force, key.path);
  if (value == nullptr) {
    return Json::parse(key.default_value);  // Saved before this key existed.
  }
  const auto origins = in_force.find("origins");
  const bool derived = origins != in_force.end() && origins->is_object() &&
                       origins->value(key.path, std::string()) == "derived";
  return derived && absl::string_view(key.path) != "train_batch_size" ? Json("derived") : *value;
}

// "model.layers was 4, now 6".
std::string DifferenceText(const std::string& path, const nlohmann::json& was,
                           const nlohmann::json& now) {
  const auto text = [](const nlohmann::json& json) {
    return json.is_null() ? std::string("absent") : json.dump();
  };
  return absl::StrFormat("%s was %s, now %s", path, text(was), text(now));
}

// Whether a setting of the program's names the type of the weights, as config.json does. It chooses
// nothing: bf16.enabled and fp16.enabled do.
bool IsTypeOfModel(absl::string_view path) {
  return path == "model.dtype" || path == "model.torch_dtype";
}

// Adds what differs inside two objects of the program's, value by value.
void AddDifferences(const std::string& path, const nlohmann::json& was, const nlohmann::json& now,
                    std::vector<ConfigDifference>& differences) {
  if (was == now || IsTypeOfModel(path)) {
    return;
  }
  if (!was.is_object() || !now.is_object()) {
    differences.push_back({path, Json(was), Json(now), DifferenceText(path, was, now)});
    return;
  }
  const auto child = [](const nlohmann::json& object, const std::string& name) {
    const auto found = object.find(name);
    return found == object.end() ? nlohmann::json() : *found;
  };
  nlohmann::json names = was;
  names.update(now);
  for (const auto& [name, unused] : names.items()) {
    AddDifferences(absl::StrCat(path, ".", name), child(was, name), child(now, name), differences);
  }
}

// Whether `path` is a setting of a precision in which only one of the two runs computes. It has
// nothing to keep: the run that goes on in another precision leaves it, or begins with it.
bool IsOfOtherPrecision(absl::string_view path, const Json& was, const Json& now) {
  const auto computes_in = [](const Json& in_force, absl::string_view type) {
    const Json* const enabled = Lookup(in_force, absl::StrCat(type, ".enabled"));
    return enabled != nullptr && *enabled == true;
  };
  for (const absl::string_view type : {"bf16", "fp16"}) {
    if (absl::StartsWith(path, absl::StrCat(type, "."))) {
      return computes_in(was, type) != computes_in(now, type);
    }
  }
  return false;
}

}  // namespace

Json Config::values_in_force() const {
  Json nested = Json::object();
  Json origins = Json::object();
  for (const plan::ConfigKey& key : plan::ConfigKeys()) {
    if (absl::string_view(key.path) == "origins") {
      continue;
    }
    Json* node = &nested;
    for (const absl::string_view part : absl::StrSplit(key.path, '.')) {
      node = &(*node)[std::string(part)];
    }
    *node = values_->at(key.path);
    origins[key.path] = std::string(ConfigOriginName(values_->origins.at(key.path)));
  }
  nested["origins"] = std::move(origins);
  return nested;
}

Json Config::hyperparameters() const {
  Json values = {{"world_size", world_size()}};
  for (const plan::ConfigKey& key : plan::ConfigKeys()) {
    const bool given = values_->origins.at(key.path) != ConfigOrigin::kDefault;
    if (key.use != plan::KeyUse::kIgnored && absl::string_view(key.path) != "origins" &&
        (given || (key.flags & plan::kIdentity) != 0)) {
      values[key.path] = values_->at(key.path);
    }
  }
  return values;
}

std::string Config::Summary() const {
  std::string text =
      absl::StrFormat("global batch %d = micro-batch %d x accumulation %d x %d ranks\n",
                      global_batch(), micro_batch(), gradient_accumulation_steps(), world_size());
  for (const plan::ConfigKey& key : plan::ConfigKeys()) {
    const absl::string_view path = key.path;
    const ConfigOrigin origin = values_->origins.at(key.path);
    // Releases of DeepSpeed differ in the default of gradient_clipping, so it is always said.
    const bool expected = origin == ConfigOrigin::kDefault && path != "gradient_clipping";
    if (expected || path == "origins") {
      continue;
    }
    absl::StrAppendFormat(&text, "%-46s %s  (%s)\n", key.path, DumpJson(values_->at(key.path)),
                          ConfigOriginName(origin));
  }
  return text;
}

uint64_t Config::identity_hash() const {
  const Json in_force = values_in_force();
  plan::StableHash hash;
  for (const plan::ConfigKey& key : plan::ConfigKeys()) {
    if ((key.flags & plan::kIdentity) != 0) {
      hash.Add(absl::string_view(key.path)).Add(Canonical(IdentityValue(in_force, key)).dump());
    }
  }
  return hash.value();
}

std::vector<ConfigDifference> Config::IdentityDifferences(const Json& saved_values_in_force) const {
  std::vector<ConfigDifference> differences;
  const Json in_force = values_in_force();
  const auto raw = [](const Json& values, const char* path) {
    const Json* const value = Lookup(values, path);
    return value == nullptr ? Json() : *value;
  };
  for (const plan::ConfigKey& key : plan::ConfigKeys()) {
    if ((key.flags & plan::kIdentity) == 0 ||
        IsOfOtherPrecision(key.path, saved_values_in_force, in_force)) {
      continue;
    }
    const nlohmann::json was = Canonical(IdentityValue(saved_values_in_force, key));
    const nlohmann::json now = Canonical(IdentityValue(in_force, key));
    if (key.type == plan::KeyType::kFree) {
      AddDifferences(key.path, was, now, differences);
    } else if (was != now) {
      differences.push_back({key.path, raw(saved_values_in_force, key.path),
                             raw(in_force, key.path), DifferenceText(key.path, was, now)});
    }
  }
  return differences;
}

std::optional<std::string> Config::IdentityDifference(const Json& saved_values_in_force) const {
  const std::vector<ConfigDifference> all = IdentityDifferences(saved_values_in_force);
  return all.empty() ? std::nullopt : std::optional(all.front().text);
}

}  // namespace dtrain
