#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/console/command_line.h"
#include "base/file.h"
#include "base/status.h"
#include "base/system/own_program.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/finetune_output.h"
#include "launcher/commands/finetune_plan.h"
#include "launcher/launch.h"
#include "launcher/program.h"
#include "launcher/ranks/spawn.h"
#include "launcher/run_to_end.h"

namespace dtrain::launcher {
namespace {

namespace fs = std::filesystem;

constexpr char kName[] = "dtrain finetune";
constexpr size_t kFileBytesMax = 32U << 20;

// The library's own check would print the largest number of the type.
CLI::Validator AboveZero() {
  return {[](std::string& text) {
            double value = 0;
            return absl::SimpleAtod(text, &value) && std::isfinite(value) && value > 0
                       ? std::string()
                       : absl::StrCat("Value ", text, " is not a number above 0");
          },
          ""};
}

void AddTrainingOptions(CLI::App& app, FinetuneOptions& options) {
  CLI::Option* const full =
      app.add_flag("--full", options.full, "Train all weights. Default: LoRA adapters");
  app.add_flag_function(
         "--lora", [](int64_t /*count*/) {},  // It says the default.
         "Train LoRA adapters, which are merged into the weights at the end. Default: on")
      ->excludes(full);
  app.add_option("--lora-rank", options.lora_rank, "Rank of the adapters")
      ->option_text("N")
      ->check(CLI::Range(1, 4096))
      ->excludes(full)
      ->capture_default_str();
  app.add_option("--epochs", options.epochs, "How often each sample is trained on")
      ->option_text("NUMBER")
      ->check(AboveZero())
      ->capture_default_str();
  app.add_option("--batch", options.batch, "Rows in a step, over all ranks")
      ->option_text("ROWS")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--lr", options.learning_rate,
                 "Learning rate. Default: 2e-4 for adapters, 1e-5 for all weights")
      ->option_text("NUMBER")
      ->check(AboveZero());
  app.add_flag("--bf16", options.bf16, "Compute in bf16. Default: fp32");
  app.add_option("--nproc,--nproc-per-node", options.ranks, "Ranks on this machine")
      ->option_text("N")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option(
         "--run-dir", options.run_dir,
         "Folder for records and checkpoints. Default: runs/NAME-HASH, which follows from the path "
         "of --out")
      ->option_text("DIR");
  app.add_flag("--overwrite", options.overwrite,
               "Replace a model that is in --out and that this run has not written. Default: "
               "such a model is left alone");
  app.add_flag("--fresh", options.fresh,
               "Move the run that is there aside and start at step 0. Default: go on with it");
  app.add_option("--set", options.overrides,
                 "Change a value of the training's configuration. May be repeated. Default: no "
                 "change")
      ->option_text("KEY=VALUE")
      ->allow_extra_args(false);
}

void AddDataOptions(CLI::App& app, FinetuneOptions& options) {
  app.add_option("FOLDER", options.folder,
                 "Folder of the model: config.json, *.safetensors and its tokenizer")
      ->required();
  app.add_option(
         "DATA", options.data,
         "JSONL files, also .gz and .zst, or Parquet files, with {\"prompt\", \"completion\"}, "
         "{\"messages\"} or {\"instruction\", \"output\"} on each line or in the columns")
      ->required();
  app.add_option("--out", options.out, "Folder for the tuned model")
      ->option_text("FOLDER")
      ->required();
  app.add_option("--template", options.chat,
                 "How samples are written: chatml, llama3, qwen, alpaca or plain. Default: the "
                 "model's own chat template, if it is one of these")
      ->option_text("NAME")
      ->check(CLI::IsMember({"chatml", "llama3", "qwen", "alpaca", "plain"}));
  app.add_option("--sequence-length", options.sequence_length,
                 "Tokens of a row, into which whole samples are packed. Default: 1024, or fewer "
                 "where the model takes fewer")
      ->option_text("TOKENS")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 24));
  app.add_option("--long-samples", options.long_samples,
                 "What becomes of a sample that is longer than a row: cut, drop or refuse")
      ->check(CLI::IsMember({"cut", "drop", "refuse"}))
      ->capture_default_str();
  app.add_option("--skip-bad", options.skip_bad,
                 "Leave out up to N records that cannot be read, such as lines that are no JSON")
      ->option_text("N")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
}

absl::StatusOr<Json> ReadJson(const std::string& path) {
  DT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kFileBytesMax));
  return ParseJson(text, path);
}

// Beside the run, so that a run that is moved aside leaves it.
std::string DataFolderOf(const FinetuneOptions& options) { return options.run_dir + "-data"; }

std::string TextOf(const std::string& path) { return ReadFile(path, kFileBytesMax).value_or(""); }

FinetuneOutput OutputOf(const FinetuneOptions& options) {
  return {.folder = options.out,
          .model_folder = options.folder,
          .run_dir = options.run_dir,
          .record = DataFolderOf(options) + "/finetune-output.json",
          .overwrite = options.overwrite};
}

// Describes what the token files are made of; an equal stamp beside them means that they are there.
// "": the data are no files alone (standard input, a folder), so that a change could not be seen.
std::string StampOf(const std::vector<std::string>& words, const FinetuneOptions& options) {
  for (const std::string& path : options.data) {
    if (std::error_code unknown; !fs::is_regular_file(path, unknown)) {
      return "";
    }
  }
  Json stamp = {{"arguments", words}, {"files", Json::array()}};
  std::vector<std::string> paths = options.data;
  for (const char* const name : {"tokenizer.json", "tokenizer.model", "tokenizer_config.json"}) {
    paths.push_back(absl::StrCat(options.folder, "/", name));
  }
  for (const std::string& path : paths) {
    std::error_code missing;
    const uintmax_t bytes = fs::file_size(path, missing);
    const auto changed = fs::last_write_time(path, missing);
    stamp["files"].push_back(
        {path, missing ? 0 : bytes, missing ? 0 : changed.time_since_epoch().count()});
  }
  return DumpJson(stamp, 2) + "\n";
}

// Token files in `folder`, unless they are there. Another exit code than kExitOk is that of
// dtrain-data.
absl::StatusOr<int> PrepareData(const FinetuneOptions& options, int64_t row_length,
                                const std::string& folder, const Environment& environment) {
  std::vector<std::string> words = PrepareArguments(options, row_length, folder);
  const std::string stamp = StampOf(words, options);
  const std::string stamp_path = folder + "/finetune-data.json";
  if (!stamp.empty() && FileExists(folder + "/corpus.json") && TextOf(stamp_path) == stamp) {
    std::printf("%s: the tokens in %s are of this data; they are used again\n", kName,
                folder.c_str());
    return kExitOk;
  }
  std::printf("%s: making tokens in %s by the template %s\n", kName, folder.c_str(),
              options.chat.c_str());
  std::fflush(stdout);
  std::error_code absent;
  fs::remove(stamp_path, absent);  // Else it would vouch for other tokens after an interruption.
  words.insert(words.begin(), OwnFolder() + "/dtrain-data");
  DT_ASSIGN_OR_RETURN(const int code, RunToEnd(words, environment));
  if (code == kExitOk && !stamp.empty()) {
    DT_RETURN_IF_ERROR(WriteFileAtomic(stamp_path, stamp));
  }
  return code;
}

// The arguments of `dtrain launch`; empty with a code of dtrain-data in `code`.
absl::StatusOr<std::vector<std::string>> Plan(FinetuneOptions& options,
                                              const Environment& environment, int* code) {
  DT_ASSIGN_OR_RETURN(const Json config, ReadJson(options.folder + "/config.json"));
  if (options.run_dir.empty()) {
    std::error_code unknown;  // A path that is not there yet would stay relative.
    const fs::path whole = fs::weakly_canonical(fs::absolute(options.out, unknown), unknown);
    options.run_dir = RunDirFor(whole.string());
  }
  DT_RETURN_IF_ERROR(CheckOutput(OutputOf(options)));
  DT_ASSIGN_OR_RETURN(const int64_t row_length,
                      RowLength(options.sequence_length, config, options.folder));
  if (options.chat.empty()) {
    DT_ASSIGN_OR_RETURN(const ChosenTemplate chosen,
                        TemplateOf({TextOf(options.folder + "/tokenizer_config.json"),
                                    TextOf(options.folder + "/chat_template.jinja")},
                                   options.folder));
    options.chat = chosen.name;
    if (!chosen.left_out.empty()) {
      std::printf(
          "%s: the chat template of %s also writes %s, which the template %s leaves out; programs "
          "that use the model's own will ask the tuned model in other words\n",
          kName, options.folder.c_str(), chosen.left_out.c_str(), chosen.name.c_str());
    }
  }
  const std::string data_folder = DataFolderOf(options);
  DT_ASSIGN_OR_RETURN(*code, PrepareData(options, row_length, data_folder, environment));
  if (*code != kExitOk) {
    return std::vector<std::string>();
  }
  DT_ASSIGN_OR_RETURN(const Json manifest, ReadJson(data_folder + "/corpus.json"));
  DT_ASSIGN_OR_RETURN(const PreparedRows rows, RowsOf(manifest, data_folder));
  const std::string config_path = data_folder + "/finetune.json";
  DT_RETURN_IF_ERROR(
      WriteFileAtomic(config_path, DumpJson(FinetuneConfig(options, row_length, rows), 2) + "\n"));
  std::vector<std::string> words = {"--standalone",
                                    "--nproc-per-node",
                                    absl::StrCat(options.ranks),
                                    "--run-dir",
                                    options.run_dir,
                                    "--",
                                    OwnFolder() + "/dtrain-finetune",
                                    config_path};
  for (const std::string& change : options.overrides) {
    words.insert(words.end(), {"--set", change});
  }
  if (options.fresh) {
    words.emplace_back("--fresh");
  }
  return words;
}

// `dtrain finetune CONFIG.json ...` is the program itself, as for other programs.
int RunProgram(const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {OwnFolder() + "/dtrain-finetune"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  execv(words[0].c_str(), ExecPointers(words).data());
  std::fprintf(stderr, "%s: cannot execute %s: %s\n", kName, words[0].c_str(),
               std::strerror(errno));
  return kExitUsage;
}

}  // namespace

int FinetuneCommand(const std::vector<std::string>& arguments, const Environment& environment) {
  if (AreForProgram(arguments)) {
    return RunProgram(arguments);
  }
  CLI::App app(
      "Fine-tunes a model folder on instruction data and writes the tuned model as such a folder.",
      kName);
  app.footer(
      "Makes tokens with the model's tokenizer, trains on completions alone, and merges\n"
      "the adapters into the weights. Ctrl-C saves and stops; the same command goes on.\n"
      "`dtrain finetune CONFIG.json` trains with a configuration and token files of\n"
      "your own.\n\n"
      "Examples:\n"
      "  dtrain finetune Qwen2.5-0.5B-Instruct chats.jsonl --out tuned\n"
      "  dtrain finetune gpt2 tasks.jsonl --template alpaca --full --out tuned\n"
      "  dtrain generate tuned --template qwen \"Why is the sky blue?\"");
  FinetuneOptions options;
  AddDataOptions(app, options);
  AddTrainingOptions(app, options);
  if (const auto code = ParseCommandLine(app, arguments)) {
    return *code;
  }
  int code = kExitOk;
  const absl::StatusOr<std::vector<std::string>> words = Plan(options, environment, &code);
  if (!words.ok()) {
    return EndOf(kName, words.status());
  }
  if (code != kExitOk) {
    std::fprintf(stderr, "%s: the data could not be made into tokens (exit code %d)\n", kName,
                 code);
    return code;
  }
  std::printf("%s: training on %d %s; the model goes to %s\n", kName,
              static_cast<int>(options.ranks), options.ranks == 1 ? "rank" : "ranks",
              options.out.c_str());
  std::fflush(stdout);
  const int trained = LaunchCommand(*words, environment);
  if (trained == kExitOk) {
    if (const absl::Status kept = RecordOutput(OutputOf(options)); !kept.ok()) {
      return EndOf(kName, kept);
    }
  }
  return trained;
}

}  // namespace dtrain::launcher
