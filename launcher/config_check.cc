#include "launcher/config_check.h"

#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/json.h"
#include "base/status.h"
#include "base/system/own_program.h"
#include "launcher/run_to_end.h"

namespace dtrain::launcher {

std::vector<std::string> ConfigurationIn(const std::vector<std::string>& arguments,
                                         int world_size) {
  std::string file;
  std::vector<std::string> overrides;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const size_t equals = arguments[i].find('=');
    const std::string name = arguments[i].substr(0, equals);
    if (name == "--set" || name == "--deepspeed_config" || name == "--run-dir" ||
        name == "--accept-change" || name == "--local_rank") {  // Options with a value.
      const bool is_next = equals == std::string::npos;
      if (is_next && i + 1 == arguments.size()) {
        return {};  // The ranks report it.
      }
      const std::string value = is_next ? arguments[++i] : arguments[i].substr(equals + 1);
      if (name == "--set") {
        overrides.insert(overrides.end(), {"--set", value});
      } else if (name == "--deepspeed_config") {
        file = value;
      }
    } else if (file.empty() && absl::EndsWith(arguments[i], ".json")) {
      file = arguments[i];
    }
  }
  if (file.empty()) {
    return {};
  }
  std::vector<std::string> words = {file, "--world-size", absl::StrCat(world_size)};
  words.insert(words.end(), overrides.begin(), overrides.end());
  return words;
}

absl::Status CheckConfiguration(const std::vector<std::string>& arguments, int world_size,
                                const Environment& environment) {
  const std::vector<std::string> configuration = ConfigurationIn(arguments, world_size);
  const std::string program = OwnFolder() + "/dtrain-config";
  if (configuration.empty() || access(program.c_str(), X_OK) != 0) {
    return absl::OkStatus();
  }
  std::vector<std::string> words = {program, "check"};
  words.insert(words.end(), configuration.begin(), configuration.end());
  std::string errors;
  DT_ASSIGN_OR_RETURN(const int code, RunToEnd(words, environment, &errors));
  const absl::string_view said =
      absl::StripPrefix(absl::StripAsciiWhitespace(errors), "dtrain config: ");
  if (code == kExitOk || said.empty()) {
    return absl::OkStatus();
  }
  // Its notes come first, each in a line of its own.
  const std::string line = absl::StrReplaceAll(said, {{"\ndtrain config: ", "; "}, {"\n", "; "}});
  return absl::InvalidArgumentError(absl::StrCat(line, "; --fresh has moved nothing"));
}

absl::StatusOr<BatchSizes> BatchIn(const std::string& checked) {
  const size_t begin = checked.find("\n{\n");
  const size_t end = checked.rfind("\n}\n");
  if (begin == std::string::npos || end == std::string::npos || end < begin) {
    return absl::InternalError("dtrain-config check --all printed no values");
  }
  DT_ASSIGN_OR_RETURN(const Json values,
                      ParseJson(checked.substr(begin, end + 2 - begin), "values in force"));
  constexpr char kBatch[] = "train_batch_size";
  constexpr char kMicro[] = "train_micro_batch_size_per_gpu";
  constexpr char kAccumulation[] = "gradient_accumulation_steps";
  const auto follows = [&values](const char* key) {
    return values.value("origins", Json::object()).value(key, std::string()) == "derived";
  };
  if (follows(kBatch) || follows(kMicro) || !follows(kAccumulation)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--nnodes MIN:MAX changes the number of ranks, and %s and %s must not change with it: set "
        "both in the configuration, and leave %s out, which follows from them",
        kBatch, kMicro, kAccumulation));
  }
  return BatchSizes{values.value(kBatch, int64_t{0}), values.value(kMicro, int64_t{0})};
}

absl::StatusOr<BatchSizes> ElasticBatch(const std::vector<std::string>& arguments,
                                        const ElasticWorlds& worlds,
                                        const Environment& environment) {
  const std::string program = OwnFolder() + "/dtrain-config";
  if (ConfigurationIn(arguments, 1).empty() || access(program.c_str(), X_OK) != 0) {
    return BatchSizes{};
  }
  std::vector<std::string> words;
  for (int nodes = worlds.nodes_max; nodes >= worlds.nodes_min; --nodes) {
    words = {program, "check", "--all"};
    for (std::string& word : ConfigurationIn(arguments, nodes * worlds.ranks)) {
      words.push_back(std::move(word));
    }
    if (const auto checked = OutputOf(words, environment); checked.ok()) {
      return BatchIn(*checked);
    }
  }
  std::string errors;
  DT_RETURN_IF_ERROR(RunToEnd(words, environment, &errors).status());
  return absl::InvalidArgumentError(absl::StrFormat(
      "no number of nodes from %d to %d will do: %s", worlds.nodes_min, worlds.nodes_max,
      absl::StripPrefix(absl::StripAsciiWhitespace(errors), "dtrain config: ")));
}

}  // namespace dtrain::launcher
