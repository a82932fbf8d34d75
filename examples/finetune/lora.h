// "finetune.lora" of the configuration: low-rank adapters on the projections of a Gpt, by
// dtrain/lora.h.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dtrain/lora.h"
#include "gpt/gpt.h"

// Keys are PEFT's: r, lora_alpha, lora_dropout, use_rslora, target_modules. Errors name `where`,
// which begins the keys' names in messages. No target_modules: the list is empty.
absl::StatusOr<dtrain::LoraOptions> ReadLoraOptions(const dtrain::Json& json,
                                                    const std::string& where);

// Collective: dtrain::ExportMerged with the model's config.json before `files`.
absl::Status ExportMergedGpt(dtrain::Job& job, dtrain::Engine& engine, GptImpl& model,
                             std::vector<std::pair<std::string, std::string>> files,
                             const std::string& directory);
