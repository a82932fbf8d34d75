#include "launcher/commands/finetune_plan.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/crc32c.h"
#include "base/numeric/epoch_steps.h"
#include "base/status.h"

namespace dtrain::launcher {
namespace {

constexpr int64_t kUsualRow = 1024;
constexpr double kLoraRate = 2e-4;
constexpr double kFullRate = 1e-5;
constexpr int64_t kMicroBatchMax = 4;

// "chat_template": a text, or several by name, of which the default counts.
std::string TemplateIn(const Json& config) {
  const Json value = config.is_object() ? config.value("chat_template", Json()) : Json();
  if (value.is_string()) {
    return value.get<std::string>();
  }
  for (const Json& one : value.is_array() ? value : Json::array()) {
    if (one.is_object() && one.value("name", Json()) == "default" &&
        one.value("template", Json()).is_string()) {
      return one["template"].get<std::string>();
    }
  }
  return "";
}

// Whether the text of a template has the beginning of a system message with words behind it. A line
// ends there by a character, or by two in a text of Jinja.
bool HasOwnSystemText(absl::string_view text) {
  constexpr absl::string_view kSystem = "<|im_start|>system";
  for (size_t at = text.find(kSystem); at != absl::string_view::npos; at = text.find(kSystem, at)) {
    at += kSystem.size();
    absl::string_view behind = text.substr(at);
    if ((absl::ConsumePrefix(&behind, "\n") || absl::ConsumePrefix(&behind, "\\n")) &&
        !behind.empty() && absl::ascii_isalpha(static_cast<unsigned char>(behind[0]))) {
      return true;
    }
  }
  return false;
}

// Names what the template `text` writes and the one called `name` does not.
std::string LeftOutOf(absl::string_view text, absl::string_view name) {
  std::vector<std::string> parts;
  if (name == "chatml" && HasOwnSystemText(text)) {
    parts.emplace_back("a system text where a sample has none");
  }
  if (absl::StrContains(text, "Cutting Knowledge Date")) {
    parts.emplace_back("dates in the system text");
  }
  if (absl::StrContains(text, "<think>")) {
    parts.emplace_back("<think> blocks");
  }
  return absl::StrJoin(parts, ", ");
}

// The largest micro-batch that divides a rank's part of the batch.
int64_t MicroBatch(int64_t rank_batch) {
  int64_t micro = std::min(rank_batch, kMicroBatchMax);
  while (rank_batch % micro != 0) {
    --micro;
  }
  return micro;
}

absl::StatusOr<std::vector<std::string>> FilesOf(const Json& split, const std::string& folder) {
  std::vector<std::string> files;
  for (const Json& name : split.value("files", Json::array())) {
    if (name.is_string() && absl::EndsWith(name.get<std::string>(), ".bin")) {
      files.push_back(absl::StrCat(folder, "/", name.get<std::string>()));
    }
  }
  if (files.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        folder, "/corpus.json names no token file; remove the folder and start again"));
  }
  return files;
}

}  // namespace

absl::StatusOr<ChosenTemplate> TemplateOf(const TemplateFiles& files, absl::string_view folder) {
  std::string text = files.chat_template;
  if (text.empty() && !files.tokenizer_config.empty()) {
    DT_ASSIGN_OR_RETURN(
        const Json config,
        ParseJson(files.tokenizer_config, absl::StrCat(folder, "/tokenizer_config.json")));
    text = TemplateIn(config);
  }
  std::string name;
  if (absl::StrContains(text, "<|start_header_id|>")) {
    name = "llama3";
  } else if (absl::StrContains(text, "<|im_start|>") && !absl::StrContains(text, "<|im_sep|>")) {
    name = absl::StrContains(text, "created by Alibaba Cloud") ? "qwen" : "chatml";
  }
  if (!name.empty()) {
    return ChosenTemplate{name, LeftOutOf(text, name)};
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s %s; name how samples are written by --template: chatml, llama3, qwen, alpaca or plain "
      "(alpaca and plain need no special tokens)",
      folder, text.empty() ? "has no chat template" : "has a chat template of its own form"));
}

absl::StatusOr<int64_t> RowLength(int64_t asked, const Json& config, absl::string_view folder) {
  int64_t positions = 0;
  for (const char* const key : {"max_position_embeddings", "n_positions"}) {
    if (config.is_object() && config.contains(key) && config[key].is_number_integer()) {
      positions = config[key].get<int64_t>();
      break;
    }
  }
  if (positions < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        folder,
        "/config.json says no number of positions (max_position_embeddings); is it the "
        "folder of a language model?"));
  }
  if (asked > positions) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--sequence-length %d is longer than the %d positions of the model in %s",
                        asked, positions, folder));
  }
  return asked > 0 ? asked : std::min(kUsualRow, positions);
}

std::string RunDirFor(const std::string& out) {
  std::filesystem::path path = std::filesystem::path(out).lexically_normal();
  if (!path.has_filename()) {
    path = path.parent_path();
  }
  const std::string whole = path.string();
  return absl::StrFormat("runs/%s-%08x", path.filename().string(),
                         Crc32c(whole.data(), whole.size()));
}

bool AreForProgram(const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (!absl::StartsWith(word, "-")) {
      return absl::EndsWith(word, ".json");
    }
    if (word == "--deepspeed_config" || absl::StartsWith(word, "--deepspeed_config=")) {
      return true;
    }
    const std::string name = word.substr(0, word.find('='));
    const bool has_value = name == "--set" || name == "--run-dir" || name == "--accept-change";
    if (!has_value && word != "--fresh") {
      return false;
    }
    i += has_value && name == word ? 1 : 0;
  }
  return false;
}

std::vector<std::string> PrepareArguments(const FinetuneOptions& options, int64_t row_length,
                                          const std::string& data_folder) {
  std::vector<std::string> words = {"prepare",
                                    "--out",
                                    data_folder,
                                    "--tokenizer",
                                    options.folder,
                                    "--template",
                                    options.chat,
                                    "--sequence-length",
                                    absl::StrCat(row_length),
                                    "--long-samples",
                                    options.long_samples,
                                    "--skip-bad",
                                    absl::StrCat(options.skip_bad)};
  words.insert(words.end(), options.data.begin(), options.data.end());
  return words;
}

absl::StatusOr<PreparedRows> RowsOf(const Json& manifest, const std::string& data_folder) {
  PreparedRows rows;
  for (const char* const split : {"train", "validation"}) {
    const Json json = manifest.is_object() ? manifest.value(split, Json()) : Json();
    const Json count = json.is_object() ? json.value("rows", Json()) : Json();
    if (!count.is_number_integer() || count.get<int64_t>() < 1) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s/corpus.json says no rows of its split %s; remove the folder and start again",
          data_folder, split));
    }
    const bool is_train = split == std::string("train");
    (is_train ? rows.train : rows.validation) = count.get<int64_t>();
    DT_ASSIGN_OR_RETURN((is_train ? rows.train_files : rows.validation_files),
                        FilesOf(json, data_folder));
  }
  return rows;
}

Json FinetuneConfig(const FinetuneOptions& options, int64_t row_length, const PreparedRows& rows) {
  const int64_t rank_batch = (options.batch + options.ranks - 1) / options.ranks;
  const int64_t batch = rank_batch * options.ranks;
  const auto steps_of = [batch](double epochs, int64_t count) {
    return StepsOfEpochs(epochs, static_cast<double>(count) / static_cast<double>(batch));
  };
  const int64_t steps = steps_of(options.epochs, rows.train);
  const int64_t epoch = steps_of(1, rows.train);
  const double usual_rate = options.full ? kFullRate : kLoraRate;
  // CheckOutput has seen to the folder.
  Json finetune = {
      {"method", options.full ? "full" : "lora"}, {"out", options.out}, {"overwrite", true}};
  if (!options.full) {
    finetune["lora"] = {{"r", options.lora_rank},
                        {"lora_alpha", 2 * options.lora_rank},
                        {"target_modules", "all-linear"}};
  }
  Json config = {{"train_batch_size", batch},
                 {"train_micro_batch_size_per_gpu", MicroBatch(rank_batch)},
                 {"train_steps", steps},
                 {"eval_interval", epoch},
                 {"eval_batches", steps_of(1, rows.validation)},
                 {"seed", 1},
                 {"gradient_clipping", 1.0},
                 {"optimizer",
                  {{"type", "AdamW"},
                   {"params",
                    {{"lr", options.learning_rate > 0 ? options.learning_rate : usual_rate},
                     {"betas", {0.9, 0.999}},
                     {"eps", 1e-8},
                     {"weight_decay", 0.0}}}}},
                 {"scheduler",
                  {{"type", "WarmupCosineLR"},
                   {"params",  // Its length follows from that of the run, which may change.
                    {{"warmup_num_steps", "auto"},
                     {"warmup_type", "linear"},
                     {"warmup_min_ratio", 0.1},
                     {"cos_min_ratio", 0.1}}}}},
                 {"data",
                  {{"train", rows.train_files},
                   {"validation", rows.validation_files},
                   {"sequence_length", row_length}}},
                 {"checkpoint", {{"interval", epoch}, {"keep", 1}}},
                 {"model", {{"pretrained", options.folder}}},
                 {"finetune", std::move(finetune)}};
  if (options.bf16) {
    config["bf16"] = {{"enabled", true}};
  }
  return config;
}

}  // namespace dtrain::launcher
