// Low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685) on the projections of a model: y = x W
// + scale * x A B with W frozen, and their files in PEFT's form. Not thread-safe.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "gpt/gpt.h"

struct LoraOptions {
  int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;
  bool rank_stabilised = false;  // scale = alpha / sqrt(rank), else alpha / rank.
  // Projections with adapters: a whole name with `*` for any text, or its last parts ("q_proj"), as
  // in PEFT. "all-linear" stands for all but the head. Empty: q_proj and v_proj; for GPT-2 c_attn.
  std::vector<std::string> target_modules = {};

  double scale() const;
  // Keys are PEFT's: r, lora_alpha, lora_dropout, use_rslora, target_modules. Errors name `where`,
  // which begins the keys' names in messages.
  static absl::StatusOr<LoraOptions> FromJson(const dtrain::Json& json, const std::string& where);
};

// Freezes the model and adds an adapter to each projection that a pattern names. Gives their names,
// in the model's order. InvalidArgument: a pattern that names none lists what there is; a rank
// above a projection's smaller side.
absl::StatusOr<std::vector<std::string>> AddLora(GptImpl& model, const LoraOptions& options);

// The name of a parameter in PEFT's files.
std::string PeftName(const std::string& name);

// The text of adapter_config.json.
std::string AdapterConfig(const LoraOptions& options, const std::vector<std::string>& adapted,
                          const GptOptions& model, const std::string& base);

// Collective: writes the engine's model with the adapters added into its weights, as a Hugging Face
// folder with `files`. At ZeRO stage 3 a rank has one weight, with its adapter, whole at a time.
absl::Status ExportMerged(dtrain::Job& job, dtrain::Engine& engine, GptImpl& model,
                          std::vector<std::pair<std::string, std::string>> files,
                          const std::string& directory);
