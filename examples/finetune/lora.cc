#include "finetune/lora.h"

#include "absl/strings/str_cat.h"
#include "gpt/config_reader.h"

namespace {

using dtrain::Json;

absl::StatusOr<std::vector<std::string>> ReadTargets(const Json& value, const std::string& where) {
  const auto refuse = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ".target_modules is ", value.dump(),
                     "; allowed: a name or a list of names of projections, such as \"q_proj\", "
                     "\"model.layers.0.*\" "
                     "or \"all-linear\""));
  };
  std::vector<std::string> targets;
  for (const Json& item : value) {  // A string counts as a list of one.
    if (value.is_object() || !item.is_string() || item.get<std::string>().empty()) {
      return refuse();
    }
    targets.push_back(item.get<std::string>());
  }
  if (targets.empty() && !value.is_null()) {
    return refuse();
  }
  return targets;
}

}  // namespace

absl::StatusOr<dtrain::LoraOptions> ReadLoraOptions(const Json& json, const std::string& where) {
  dtrain::LoraOptions options;
  ConfigReader reader(json, where);
  reader.Integer("r", options.rank);
  options.alpha = 2 * static_cast<double>(options.rank);
  reader.Positive("lora_alpha", options.alpha);
  reader.Share("lora_dropout", options.dropout);
  reader.Boolean("use_rslora", options.rank_stabilised);
  DT_ASSIGN_OR_RETURN(options.target_modules, ReadTargets(reader.Take("target_modules"), where));
  DT_RETURN_IF_ERROR(reader.Finish());
  return options;
}

absl::Status ExportMergedGpt(dtrain::Job& job, dtrain::Engine& engine, GptImpl& model,
                             std::vector<std::pair<std::string, std::string>> files,
                             const std::string& directory) {
  const Json config = model.options().ToHuggingFace(job.config().precision());
  files.emplace(files.begin(), "config.json", dtrain::DumpJson(config, 2) + "\n");
  return dtrain::ExportMerged(job, engine, model, std::move(files), directory);
}
