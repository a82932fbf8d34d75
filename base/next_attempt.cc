#include "base/next_attempt.h"

#include <utility>

#include "base/json.h"
#include "base/status.h"

namespace dtrain {

std::string NextAttempt::Encode() const {
  Json variables = Json::object();
  for (const auto& [name, value] : environment) {
    variables[name] = value;
  }
  return DumpJson({{"environment", std::move(variables)},
                   {"out_path", out_path},
                   {"err_path", err_path},
                   {"cpus", cpus},
                   {"memory_node", memory_node}});
}

absl::StatusOr<NextAttempt> NextAttempt::Parse(absl::string_view line) {
  DT_ASSIGN_OR_RETURN(const Json json, ParseJson(line, "order of the next attempt"));
  const auto malformed = absl::InvalidArgumentError(
      "the order of the next attempt needs \"environment\", \"out_path\", \"err_path\", \"cpus\" "
      "and \"memory_node\"");
  if (!json.is_object() || !json.contains("environment") || !json["environment"].is_object()) {
    return malformed;
  }
  NextAttempt next;
  for (const auto& [name, value] : json["environment"].items()) {
    if (name.empty() || !value.is_string()) {
      return malformed;
    }
    next.environment[name] = value.get<std::string>();
  }
  for (const auto& [key, path] :
       {std::pair("out_path", &next.out_path), std::pair("err_path", &next.err_path)}) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_string()) {
      return malformed;
    }
    *path = found->get<std::string>();
  }
  const auto cpus = json.find("cpus");
  const auto memory_node = json.find("memory_node");
  if (cpus == json.end() || !cpus->is_array() || memory_node == json.end() ||
      !memory_node->is_number_integer()) {
    return malformed;
  }
  for (const Json& cpu : *cpus) {
    if (!cpu.is_number_integer()) {
      return malformed;
    }
    next.cpus.push_back(cpu.get<int>());
  }
  next.memory_node = memory_node->get<int>();
  return next;
}

}  // namespace dtrain
