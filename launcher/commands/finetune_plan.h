// The decisions of `dtrain finetune` before it starts anything: which template a model's chats
// have, how many steps a data set takes, and the configuration of the training. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/json.h"

namespace dtrain::launcher {

struct FinetuneOptions {
  std::string folder;             // The model's folder.
  std::vector<std::string> data;  // JSONL files.
  std::string out;
  std::string chat;  // Name of the template; "": by the folder.
  bool full = false;
  int64_t lora_rank = 16;
  double epochs = 3;
  int64_t batch = 8;
  double learning_rate = 0;     // 0: by the method.
  int64_t sequence_length = 0;  // 0: by the model.
  std::string long_samples = "cut";
  int64_t skip_bad = 0;
  bool bf16 = false;
  int64_t ranks = 1;
  std::string run_dir;     // "": RunDirFor(out).
  bool overwrite = false;  // A model in `out` of another origin is replaced.
  bool fresh = false;
  std::vector<std::string> overrides;  // KEY=VALUE.
};

// The files of a model folder by which its template is known; "": there is none.
struct TemplateFiles {
  std::string tokenizer_config;  // tokenizer_config.json.
  std::string chat_template;     // chat_template.jinja.
};

// The template for a model's samples, and what its own writes besides, for people; "": nothing that
// is known.
struct ChosenTemplate {
  std::string name;
  std::string left_out;
};

// "qwen", "chatml" or "llama3", where the model's own template has that form. InvalidArgument: it
// has none, or one that is not known, and the templates to choose from are named.
absl::StatusOr<ChosenTemplate> TemplateOf(const TemplateFiles& files, absl::string_view folder);

// Tokens of a row: what was asked for, else 1024, or fewer where the model takes fewer. `config`:
// the model's config.json. InvalidArgument: longer than the model takes.
absl::StatusOr<int64_t> RowLength(int64_t asked, const Json& config, absl::string_view folder);

// runs/NAME-HASH of the folder with the whole path `out`, which may end with a slash: two folders
// of one name have two runs.
std::string RunDirFor(const std::string& out);

// Whether the arguments are those of the program dtrain-finetune, CONFIG.json and its options in
// any order, and not a model's folder and data.
bool AreForProgram(const std::vector<std::string>& arguments);

// The arguments of `dtrain-data` that make the token files in `data_folder`.
std::vector<std::string> PrepareArguments(const FinetuneOptions& options, int64_t row_length,
                                          const std::string& data_folder);

// Rows of training and of validation, by the text of corpus.json.
struct PreparedRows {
  int64_t train = 0;
  int64_t validation = 0;
  std::vector<std::string> train_files;
  std::vector<std::string> validation_files;
};
absl::StatusOr<PreparedRows> RowsOf(const Json& manifest, const std::string& data_folder);

// The configuration of dtrain-finetune. The batch is rounded up to a multiple of the ranks.
Json FinetuneConfig(const FinetuneOptions& options, int64_t row_length, const PreparedRows& rows);

}  // namespace dtrain::launcher
