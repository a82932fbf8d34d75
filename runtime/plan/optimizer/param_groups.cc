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

}  // namespace

absl::StatusOr<std::vector<ParamGroupConfig>> ParseParamGroups(
    const Json& list, absl::Span<const absl::string_view> settings) {
  std::vector<ParamGroupConfig> groups;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string at = absl::StrFormat("optimizer.param_groups[%d]", i);
    DT_ASSIGN_OR_RETURN(groups.emplace_back(), ParseGroup(at, list[i], settings));
  }
  return groups;
}

}  // namespace dtrain::plan
