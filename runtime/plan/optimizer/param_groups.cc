#include "runtime/plan/optimizer/param_groups.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "runtime/plan/config/config_keys.h"

namespace dtrain::plan {
namespace {

// Checks a value as the key of the same name in optimizer.params is checked; errors name `path`.
absl::StatusOr<Json> Setting(const std::string& name, const std::string& path, const Json& value) {
  ConfigKey key = *FindConfigKey("optimizer.params." + name);
  key.path = path.c_str();
  key.flags = 0;  // "auto" is the whole run's.
  return CheckValue(key, value);
}

absl::StatusOr<std::vector<std::string>> Patterns(const std::string& path, const Json& value) {
  const ConfigKey key{path.c_str(), KeyType::kStringList, "[]", "", KeyUse::kUsed, "", 0, ""};
  DT_ASSIGN_OR_RETURN(const Json list, CheckValue(key, value));
  if (list.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is []; want the names of parameters, for example [\"*.bias\"]", path));
  }
  return list.get<std::vector<std::string>>();
}

absl::StatusOr<std::string> EngineName(const std::string& path, const Json& value) {
  const ConfigKey key{path.c_str(), KeyType::kString, "null", "", KeyUse::kUsed, "", 0, ""};
  DT_ASSIGN_OR_RETURN(const Json name, CheckValue(key, value));
  if (!name.is_string() || name.get<std::string>().empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s is %s; want the name of an engine as the program gives it (EngineOptions::name)", path,
        DumpJson(value)));
  }
  return name.get<std::string>();
}

absl::StatusOr<ParamGroupConfig> ParseGroup(const std::string& at, const Json& group,
                                            absl::Span<const absl::string_view> settings) {
  ParamGroupConfig result;
  for (const auto& [name, value] : group.items()) {
    const std::string path = absl::StrFormat("%s.%s", at, name);
    if (name == "params") {
      DT_ASSIGN_OR_RETURN(result.params, Patterns(path, value));
      continue;
    }
    if (name == "engine") {
      DT_ASSIGN_OR_RETURN(result.engine, EngineName(path, value));
      continue;
    }
    if (std::find(settings.begin(), settings.end(), name) == settings.end()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s is not a setting of a parameter group; this optimizer takes params, engine, %s", path,
          absl::StrJoin(settings, ", ")));
    }
    DT_ASSIGN_OR_RETURN(const Json checked, Setting(name, path, value));
    if (name == "lr") {
      result.lr = checked.get<double>();
    } else if (name == "weight_decay") {
      result.weight_decay = checked.get<double>();
    } else if (name == "eps") {
      result.eps = checked.get<double>();
    } else {
      result.betas = {checked[0].get<double>(), checked[1].get<double>()};
    }
  }
  if (result.params.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s has no \"params\"; name its parameters, for example [\"*.bias\"]", at));
  }
  return result;
}

absl::StatusOr<std::vector<ParamGroupConfig>> ParseGroups(
    const std::string& where, const Json& list, absl::Span<const absl::string_view> settings) {
  std::vector<ParamGroupConfig> groups;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string at = absl::StrFormat("%s[%d]", where, i);
    DT_ASSIGN_OR_RETURN(groups.emplace_back(), ParseGroup(at, list[i], settings));
  }
  return groups;
}

// The groups of one engine, to which they hold without naming it.
absl::StatusOr<std::vector<ParamGroupConfig>> ParseEngineGroups(
    const std::string& path, const Json& list, absl::Span<const absl::string_view> settings) {
  const ConfigKey key{path.c_str(), KeyType::kObjectList, "[]", "", KeyUse::kUsed, "", 0, ""};
  DT_ASSIGN_OR_RETURN(const Json checked, CheckValue(key, list));
  DT_ASSIGN_OR_RETURN(std::vector<ParamGroupConfig> groups, ParseGroups(path, checked, settings));
  for (size_t i = 0; i < groups.size(); ++i) {
    if (!groups[i].engine.empty()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s[%d] has an \"engine\", but holds for this engine alone; remove it", path, i));
    }
  }
  return groups;
}

// A setting of an engine that is a key of the whole run too.
absl::StatusOr<Json> RunSetting(const std::string& name, const std::string& path,
                                const Json& value) {
  ConfigKey key = *FindConfigKey(name);
  key.path = path.c_str();
  key.flags = 0;
  return CheckValue(key, value);
}

absl::StatusOr<EngineSettings> ParseEngine(const std::string& at, const Json& engine,
                                           absl::Span<const absl::string_view> settings) {
  if (!engine.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is %s; want an object with the settings of the engine of this name", at,
                        ShortJson(engine)));
  }
  EngineSettings result;
  for (const auto& [name, value] : engine.items()) {
    const std::string path = absl::StrFormat("%s.%s", at, name);
    if (name == "param_groups") {
      DT_ASSIGN_OR_RETURN(result.groups, ParseEngineGroups(path, value, settings));
    } else if (name == "gradient_clipping") {
      DT_ASSIGN_OR_RETURN(const Json checked, RunSetting(name, path, value));
      result.gradient_clipping = checked.get<double>();
    } else if (name == "gradient_accumulation_steps") {
      DT_ASSIGN_OR_RETURN(const Json checked, RunSetting(name, path, value));
      result.gradient_accumulation_steps = checked.get<int64_t>();
    } else if (std::find(settings.begin(), settings.end(), name) == settings.end()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s is not a setting of an engine; with this optimizer allowed: %s, gradient_clipping, "
          "gradient_accumulation_steps, param_groups",
          path, absl::StrJoin(settings, ", ")));
    } else {
      DT_ASSIGN_OR_RETURN(const Json checked, Setting(name, path, value));
      if (name == "betas") {
        result.betas = {checked[0].get<double>(), checked[1].get<double>()};
      } else {
        (name == "lr"    ? result.lr
         : name == "eps" ? result.eps
                         : result.weight_decay) = checked.get<double>();
      }
    }
  }
  return result;
}

}  // namespace

std::vector<absl::string_view> SettingsOf(OptimizerConfig::Kind kind) {
  using Kind = OptimizerConfig::Kind;
  switch (kind) {
    case Kind::kSgd:
      return {"lr", "weight_decay"};
    case Kind::kLion:
      return {"lr", "weight_decay", "betas"};
    case Kind::kAdagrad:
      return {"lr", "weight_decay", "eps"};
    case Kind::kAdamW:
    case Kind::kAdam:
    case Kind::kLamb:
    case Kind::kMuon:
      break;
  }
  return {"lr", "weight_decay", "betas", "eps"};
}

absl::StatusOr<std::vector<ParamGroupConfig>> ParseParamGroups(
    const Json& list, absl::Span<const absl::string_view> settings) {
  return ParseGroups("optimizer.param_groups", list, settings);
}

absl::StatusOr<std::map<std::string, EngineSettings, std::less<>>> ParseEngines(
    const Json& engines, absl::Span<const absl::string_view> settings) {
  std::map<std::string, EngineSettings, std::less<>> result;
  for (const auto& [name, engine] : engines.items()) {
    DT_ASSIGN_OR_RETURN(result[name], ParseEngine("engines." + name, engine, settings));
  }
  return result;
}

}  // namespace dtrain::plan
