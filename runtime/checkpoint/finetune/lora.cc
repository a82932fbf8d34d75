#include "dtrain/lora.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "dtrain/model_files.h"
#include "dtrain/optimizer_config.h"
#include "torch/nn/module.h"

namespace dtrain {
namespace {

constexpr char kAllLinear[] = "all-linear";

struct NamedLayer {
  std::string name;
  LowRankLayer* layer;
};

std::vector<NamedLayer> AdaptableLayers(torch::nn::Module& model) {
  std::vector<NamedLayer> all;
  for (const auto& item : model.named_modules()) {
    if (auto* const layer = dynamic_cast<LowRankLayer*>(item.value().get())) {
      all.push_back({item.key(), layer});
    }
  }
  return all;
}

bool NamesLayer(const std::string& pattern, const std::string& name) {
  if (pattern == kAllLinear) {
    return name != "lm_head";
  }
  return pattern.find('*') == std::string::npos
             ? name == pattern || absl::EndsWith(name, "." + pattern)
             : MatchesPattern(pattern, name);
}

// Names of options in messages: PEFT's keys of a configuration, or the program's members.
struct OptionNames {
  std::string rank, dropout, alpha, targets;

  explicit OptionNames(const std::string& where)
      : rank(where.empty() ? "LoraOptions::rank" : where + ".r"),
        dropout(where.empty() ? "LoraOptions::dropout" : where + ".lora_dropout"),
        alpha(where.empty() ? "LoraOptions::alpha" : where + ".lora_alpha"),
        targets((where.empty() ? "LoraOptions::" : where + ".") + "target_modules") {}
};

absl::Status CheckLoraOptions(const LoraOptions& options, const OptionNames& names) {
  if (options.rank < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is %d; allowed: 1 or more", names.rank, options.rank));
  }
  if (!(options.dropout >= 0 && options.dropout < 1)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is %g; allowed: from 0 to below 1", names.dropout, options.dropout));
  }
  if (!(options.alpha > 0) || std::isinf(options.alpha)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is %g; allowed: a number above 0", names.alpha, options.alpha));
  }
  return absl::OkStatus();
}

absl::Status NamesNone(const std::string& where, const std::string& pattern,
                       const std::vector<NamedLayer>& all) {
  std::vector<std::string> names;
  for (const NamedLayer& item : all) {
    names.push_back(item.name);
  }
  // NamesLayer takes a name without a star as the end of a longer one.
  const bool is_whole = pattern.find('*') != std::string::npos;
  const std::vector<std::string> nearest = NearestNames(is_whole ? pattern : "*" + pattern, names);
  constexpr size_t kListedMax = 8;
  const bool more = names.size() > kListedMax;
  names.resize(std::min(names.size(), kListedMax));
  return absl::InvalidArgumentError(absl::StrCat(
      where, " \"", pattern, "\" names no projection of the model; nearest: ",
      absl::StrJoin(nearest, ", "), "; it has ", absl::StrJoin(names, ", "), more ? ", ..." : ""));
}

// The layers that are to be adapted, before any of them is.
absl::StatusOr<std::vector<NamedLayer>> ChooseLayers(torch::nn::Module& model,
                                                     const LoraOptions& options,
                                                     const OptionNames& names) {
  const std::vector<NamedLayer> all = AdaptableLayers(model);
  if (all.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "AddLora: %s has no layer that can have an adapter; use dtrain::Linear (dtrain/linear.h) "
        "in place of torch::nn::Linear, or derive layers from dtrain::LowRankLayer",
        model.name()));
  }
  if (options.target_modules.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s is empty, so that nothing would be trained; name layers, or \"all-linear\"",
        names.targets));
  }
  std::vector<NamedLayer> chosen;
  for (const NamedLayer& item : all) {
    if (std::none_of(options.target_modules.begin(), options.target_modules.end(),
                     [&](const std::string& pattern) { return NamesLayer(pattern, item.name); })) {
      continue;
    }
    const LowRankLayer::Shape shape = item.layer->low_rank_shape();
    if (const int64_t smaller = std::min(shape.in, shape.out); options.rank > smaller) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s %d is above the smaller side of %s; allowed: 1 to %d", names.rank,
                          options.rank, item.name, smaller));
    }
    if (item.layer->has_low_rank()) {
      return absl::FailedPreconditionError(
          absl::StrFormat("AddLora: %s has an adapter already; call it once", item.name));
    }
    chosen.push_back(item);
  }
  for (const std::string& pattern : options.target_modules) {
    if (std::none_of(all.begin(), all.end(),
                     [&](const NamedLayer& item) { return NamesLayer(pattern, item.name); })) {
      return NamesNone(names.targets, pattern, all);
    }
  }
  return chosen;
}

// The "target_modules" of adapter_config.json: the patterns if PEFT reads them alike, else the name
// of every adapted layer.
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

absl::StatusOr<std::vector<std::string>> AddLora(torch::nn::Module& model,
                                                 const LoraOptions& options,
                                                 const std::string& where) {
  const OptionNames names(where);
  DT_RETURN_IF_ERROR(CheckLoraOptions(options, names));
  DT_ASSIGN_OR_RETURN(const std::vector<NamedLayer> chosen, ChooseLayers(model, options, names));
  for (const at::Tensor& parameter : model.parameters()) {
    parameter.set_requires_grad(false);
  }
  std::vector<std::string> adapted;
  for (const NamedLayer& item : chosen) {
    item.layer->AddLowRank(options.rank, options.scale(), options.dropout);
    adapted.push_back(item.name);
  }
  return adapted;
}

std::string PeftName(const std::string& name) { return absl::StrCat("base_model.model.", name); }

std::string AdapterConfig(const LoraOptions& options, const std::vector<std::string>& adapted,
                          const std::string& base, bool transposed) {
  const Json json = {{"peft_type", "LORA"},
                     {"task_type", "CAUSAL_LM"},
                     {"base_model_name_or_path", base},
                     {"r", options.rank},
                     {"lora_alpha", options.alpha},
                     {"lora_dropout", options.dropout},
                     {"use_rslora", options.rank_stabilised},
                     {"target_modules", PeftTargets(options, adapted)},
                     {"fan_in_fan_out", transposed},
                     {"bias", "none"},
                     {"modules_to_save", nullptr},
                     {"inference_mode", true}};
  return DumpJson(json, 2) + "\n";
}

absl::Status ExportMerged(Job& job, Engine& engine, torch::nn::Module& model,
                          std::vector<std::pair<std::string, std::string>> files,
                          const std::string& directory) {
  std::map<std::string, LowRankLayer*> owner;  // By a weight's name: the layer that has it.
  for (const NamedLayer& item : AdaptableLayers(model)) {
    owner[item.name.empty() ? "weight" : absl::StrCat(item.name, ".weight")] = item.layer;
  }
  ExportOptions options;
  options.files = std::move(files);
  options.public_name = [](const std::string& name) {
    return absl::StrContains(name, ".lora_") ? std::string() : name;
  };
  options.with_frozen = true;
  options.change = [&owner](const std::string& name) {
    const auto found = owner.find(name);
    return found == owner.end() ? at::Tensor() : found->second->LowRankWeight();
  };
  return ExportModel(job, engine, directory, options);
}

}  // namespace dtrain
