#include "runtime/job/arguments.h"

#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace dtrain {
namespace {

constexpr char kAllowed[] =
    "CONFIG.json, --set KEY=VALUE, --run-dir DIR, --fresh, --accept-change KEY, --help";

// Walks over argv; gives the value of "--name=value" or "--name value", which is never empty. An
// option that follows a name is no value of it.
class Words {
 public:
  explicit Words(const std::vector<std::string>& words) : words_(words) {}
  bool More() const { return at_ < words_.size(); }
  const std::string& Next() { return words_[at_++]; }
  absl::StatusOr<std::string> Value(const std::string& word, const std::string& name) {
    const bool joined = absl::StartsWith(word, name + "=");
    if (!joined && (!More() || absl::StartsWith(words_[at_], "--"))) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, " needs a value after it",
          More() ? absl::StrFormat("; what follows is the option %s (%s=VALUE takes any value)",
                                   words_[at_], name)
                 : ""));
    }
    std::string value = joined ? word.substr(name.size() + 1) : Next();
    if (value.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " has an empty value; give one, or leave ", name, " out"));
    }
    return value;
  }

 private:
  const std::vector<std::string>& words_;
  size_t at_ = 1;
};

bool Is(const std::string& word, const std::string& name) {
  return word == name || absl::StartsWith(word, name + "=");
}

}  // namespace

absl::StatusOr<ProgramArguments> ParseProgramArguments(const std::vector<std::string>& argv) {
  ProgramArguments arguments;
  JobOptions& options = arguments.options;
  options.program = argv.empty() ? "program" : argv.front();
  Words words(argv);
  while (words.More()) {
    const std::string word = words.Next();
    if (word == "--help" || word == "-h") {
      arguments.help = true;
    } else if (word == "--fresh") {
      options.fresh = true;
    } else if (Is(word, "--accept-change")) {
      DT_ASSIGN_OR_RETURN(options.accept_changes.emplace_back(),
                          words.Value(word, "--accept-change"));
    } else if (Is(word, "--set")) {
      DT_ASSIGN_OR_RETURN(options.overrides.emplace_back(), words.Value(word, "--set"));
    } else if (Is(word, "--run-dir")) {
      DT_ASSIGN_OR_RETURN(options.run_dir, words.Value(word, "--run-dir"));
    } else if (Is(word, "--deepspeed_config")) {
      DT_ASSIGN_OR_RETURN(options.config_file, words.Value(word, "--deepspeed_config"));
    } else if (Is(word, "--local_rank") || word == "--deepspeed") {
      // Flags that DeepSpeed's launcher adds; the environment says the same.
      if (word == "--local_rank") {
        DT_RETURN_IF_ERROR(words.Value(word, "--local_rank").status());
      }
    } else if (word.empty() || absl::StartsWith(word, "-")) {
      return absl::InvalidArgumentError(absl::StrFormat("unknown argument %s; allowed: %s",
                                                        word.empty() ? "\"\" (an empty one)" : word,
                                                        kAllowed));
    } else if (!options.config_file.empty()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "two configuration files, %s and %s; give one and change values by --set KEY=VALUE",
          options.config_file, word));
    } else {
      options.config_file = word;
    }
  }
  return arguments;
}

std::string ProgramHelp(const std::string& program, const std::string& about) {
  return absl::StrCat(
      about, about.empty() ? "" : "\n", "Usage: ", program,
      " CONFIG.json [--set KEY=VALUE]... [--run-dir DIR] [--fresh]\n",
      "         [--accept-change KEY]...\n\n", "Arguments:\n",
      "  CONFIG.json        Configuration. Its keys have DeepSpeed's names. Comments are\n",
      "                     allowed. --deepspeed_config CONFIG.json does the same.\n\n",
      "Options:\n", "  --set KEY=VALUE    Change a value of the configuration. May be repeated.\n",
      "  --run-dir DIR      Folder for records and checkpoints. A run that is there\n",
      "                     continues. Default: DTRAIN_RUN_DIR, else runs/PROGRAM.\n",
      "  --fresh            Move the run that is there aside and start at step 0.\n",
      "  --accept-change KEY\n",
      "                     Continue the run that is there although KEY has another\n",
      "                     value. May be repeated. KEY is one of optimizer.params,\n",
      "                     scheduler, train_batch_size, gradient_clipping ...\n\n", "Examples:\n",
      "  dtrain launch --nproc-per-node 2 ", program, " config.json\n  ", program,
      " config.json --set train_steps=100 --run-dir runs/try\n");
}

}  // namespace dtrain
