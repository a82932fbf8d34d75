#include "finetune/lora.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "gpt/config_reader.h"

namespace {

using dtrain::Json;

constexpr char kAllLinear[] = "all-linear";

struct Named {
  std::string name;
  ProjectionImpl* projection;
};

std::vector<Named> Projections(GptImpl& model) {
  std::vector<Named> all;
  for (const auto& item : model.named_modules()) {
    if (auto* const projection = item.value()->as<ProjectionImpl>()) {
      all.push_back({item.key(), projection});
    }
  }
  return all;
}

bool Matches(const std::string& pattern, const std::string& name) {
  if (pattern == kAllLinear) {
    return name != "lm_head";
  }
  return pattern.find('*') == std::string::npos
             ? name == pattern || absl::EndsWith(name, "." + pattern)
             : dtrain::MatchesPattern(pattern, name);
}

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

// The "target_modules" of adapter_config.json: the patterns if PEFT reads them alike, else the name
// of every adapted projection.
std::vector<std::string> PeftTargets(const LoraOptions& options,
                                     const std::vector<std::string>& adapted) {
  const bool plain = std::all_of(
      options.target_modules.begin(), options.target_modules.end(), [](const std::string& pattern) {
        return pattern != kAllLinear && pattern.find('*') == std::string::npos;
      });
  return plain ? options.target_modules : adapted;
}

}  // namespace

double LoraOptions::scale() const {
  const auto r = static_cast<double>(rank);
  return alpha / (rank_stabilised ? std::sqrt(r) : r);
}

absl::StatusOr<LoraOptions> LoraOptions::FromJson(const Json& json, const std::string& where) {
  LoraOptions options;
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

absl::StatusOr<std::vector<std::string>> AddLora(GptImpl& model, const LoraOptions& options) {
  for (const at::Tensor& parameter : model.parameters()) {
    parameter.set_requires_grad(false);
  }
  const std::vector<Named> all = Projections(model);
  std::map<std::string, bool> used;
  std::vector<std::string> adapted;
  for (const Named& item : all) {
    bool wanted = false;
    for (const std::string& pattern : options.target_modules) {
      if (Matches(pattern, item.name)) {
        used[pattern] = true;
        wanted = true;
      }
    }
    if (!wanted) {
      continue;
    }
    const int64_t smaller = std::min(item.projection->options().in, item.projection->options().out);
    if (options.rank > smaller) {
      return absl::InvalidArgumentError(
          absl::StrFormat("finetune.lora.r %d is above the smaller side of %s; allowed: 1 to %d",
                          options.rank, item.name, smaller));
    }
    item.projection->AddLowRank(options.rank, options.scale(), options.dropout);
    adapted.push_back(item.name);
  }
  for (const std::string& pattern : options.target_modules) {
    if (!used[pattern]) {
      std::vector<std::string> names;
      for (const Named& item : all) {
        names.push_back(item.name);
      }
      // Matches takes a name without a star as the end of a longer one.
      const bool is_whole = pattern.find('*') != std::string::npos;
      const std::vector<std::string> nearest =
          dtrain::NearestNames(is_whole ? pattern : "*" + pattern, names);
      constexpr size_t kListedMax = 8;
      const bool more = names.size() > kListedMax;
      names.resize(std::min(names.size(), kListedMax));
      return absl::InvalidArgumentError(absl::StrCat(
          "finetune.lora.target_modules \"", pattern,
          "\" names no projection of the model; nearest: ", absl::StrJoin(nearest, ", "),
          "; it has ", absl::StrJoin(names, ", "), more ? ", ..." : ""));
    }
  }
  return adapted;
}

std::string PeftName(const std::string& name) { return absl::StrCat("base_model.model.", name); }

std::string AdapterConfig(const LoraOptions& options, const std::vector<std::string>& adapted,
                          const GptOptions& model, const std::string& base) {
  const Json json = {{"peft_type", "LORA"},
                     {"task_type", "CAUSAL_LM"},
                     {"base_model_name_or_path", base},
                     {"r", options.rank},
                     {"lora_alpha", options.alpha},
                     {"lora_dropout", options.dropout},
                     {"use_rslora", options.rank_stabilised},
                     {"target_modules", PeftTargets(options, adapted)},
                     {"fan_in_fan_out", model.is_gpt2()},
                     {"bias", "none"},
                     {"modules_to_save", nullptr},
                     {"inference_mode", true}};
  return dtrain::DumpJson(json, 2) + "\n";
}

absl::Status ExportMerged(dtrain::Job& job, dtrain::Engine& engine, GptImpl& model,
                          std::vector<std::pair<std::string, std::string>> files,
                          const std::string& directory) {
  std::map<std::string, ProjectionImpl*> owner;  // By a weight's name: the projection that has it.
  for (const Named& item : Projections(model)) {
    owner[absl::StrCat(item.name, ".weight")] = item.projection;
  }
  const Json config = model.options().ToHuggingFace(job.config().precision());
  dtrain::ExportOptions options;
  options.files = std::move(files);
  options.files.emplace_back("config.json", dtrain::DumpJson(config, 2) + "\n");
  options.public_name = [](const std::string& name) {
    return absl::StrContains(name, ".lora_") ? std::string() : name;
  };
  options.with_frozen = true;
  options.change = [&owner](const std::string& name) {
    const auto found = owner.find(name);
    return found == owner.end() ? at::Tensor() : found->second->LowRankWeight();
  };
  return dtrain::ExportModel(job, engine, directory, options);
}
