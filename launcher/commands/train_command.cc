#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/console/command_line.h"
#include "base/file.h"
#include "base/status.h"
#include "base/system/own_program.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/quick_start.h"
#include "launcher/launch.h"
#include "launcher/program.h"
#include "launcher/run_to_end.h"
#include "launcher/start/find_torch.h"

namespace dtrain::launcher {
namespace {

constexpr char kTrainHelp[] =
    R"(Usage: dtrain train [--set KEY=VALUE]... [--run-dir DIR] [--fresh]
                    [--accept-change KEY]...
Trains a GPT of 5 million parameters on 2 ranks of this machine: the
quick start.

1. Writes token files to data/headers, unless they are there. Their text is the
   C and C++ headers of /usr/include or, without those, the headers that come
   with dtrain and LibTorch.
2. Starts dtrain-gpt with the default configuration. Ctrl-C saves and stops; the
   same command goes on from the last checkpoint.

All arguments go to dtrain-gpt.

Options:
  --set KEY=VALUE  Change a value of the configuration. May be repeated.
                   `dtrain config docs` lists all keys. Default: no change.
  --run-dir DIR    Folder for records and checkpoints. Default: runs/gpt.
  --fresh          Move the run that is there aside and start at step 0.
                   Default: off.
  --accept-change KEY
                   Continue the run that is there although KEY, such as
                   optimizer.params.lr, scheduler or train_batch_size, has
                   another value. May be repeated. Default: none.

Examples:
  dtrain train
  dtrain train --set train_steps=1000 --set optimizer.params.lr=1e-3
  dtrain data prepare --out data/books ~/books
  dtrain train --run-dir runs/books \
    --set 'data.train=["data/books/train.bin"]' \
    --set 'data.validation=["data/books/val.bin"]'

To watch it from another terminal:
  dtrain logs -f runs/gpt
  tensorboard --logdir runs/gpt/report/tensorboard
)";

constexpr char kDataFolder[] = "data/headers";
constexpr char kWrittenLast[] = "/corpus.json";  // `dtrain-data prepare` ends with this file.
constexpr char kSystemHeaders[] = "/usr/include";
// Bytes; fewer are only left over from a few packages.
constexpr int64_t kSystemHeadersMin = 1 << 20;

// Whether --help is among the arguments; all others are the program's.
bool AsksForHelp(const std::vector<std::string>& arguments) {
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const std::string& text) { return text == "--help" || text == "-h"; });
}

// Runs the program that writes the corpus, and gives its exit code.
absl::StatusOr<int> MakeCorpus(const std::string& prefix, const std::string& torch,
                               const Environment& environment) {
  const std::vector<std::string> folders =
      CorpusFolders(kSystemHeaders, prefix, torch, kSystemHeadersMin);
  if (folders.empty()) {
    return absl::NotFoundError(
        "there are no C or C++ headers in /usr/include to train on; name a folder with text: "
        "dtrain data prepare --out data/headers FOLDER");
  }
  std::printf("dtrain train: writing token files to %s from the headers in %s\n", kDataFolder,
              absl::StrJoin(folders, " and ").c_str());
  std::fflush(stdout);
  std::vector<std::string> words = {
      OwnFolder() + "/dtrain-data", "prepare", "--out", kDataFolder, "--ext", "h,hpp,hh,hxx,none"};
  words.insert(words.end(), folders.begin(), folders.end());
  return RunToEnd(words, environment);
}

// Prepares the run. An exit code other than kExitOk is that of `dtrain train`.
absl::StatusOr<int> Prepare(const std::string& prefix, const std::vector<std::string>& arguments,
                            const Environment& environment) {
  if (access((OwnFolder() + "/dtrain-gpt").c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrFormat(
        "%s/dtrain-gpt is missing: build or install all programs of dtrain", OwnFolder()));
  }
  // Checked before anything is written, because otherwise each rank would print the error.
  DT_ASSIGN_OR_RETURN(const Torch torch, FindTorch(OwnTorchSearch(environment)));
  if (NamesData(arguments) || FileExists(absl::StrCat(kDataFolder, kWrittenLast))) {
    return kExitOk;
  }
  return MakeCorpus(prefix, torch.folder, environment);
}

}  // namespace

int TrainCommand(const std::vector<std::string>& arguments, const Environment& environment) {
  if (AsksForHelp(arguments)) {
    std::fputs(kTrainHelp, stdout);
    return kExitOk;
  }
  const std::string prefix = OwnPrefix();
  const absl::StatusOr<std::string> config = DefaultConfig(prefix);
  const absl::StatusOr<int> prepared =
      config.ok() ? Prepare(prefix, arguments, environment) : config.status();
  if (!prepared.ok()) {
    return EndOf("dtrain train", prepared.status());
  }
  if (*prepared != kExitOk) {
    const std::string why = *prepared > 128 ? absl::StrFormat("signal %d", *prepared - 128)
                                            : "what is wrong stands above";
    std::fprintf(stderr, "dtrain train: %s/dtrain-data ended with exit code %d (%s)\n",
                 OwnFolder().c_str(), *prepared, why.c_str());
    return *prepared;
  }
  std::vector<std::string> words = {"--standalone", "--nproc-per-node", "2"};
  if (RunDirInArguments(arguments).empty()) {
    words.insert(words.end(), {"--run-dir", "runs/gpt"});
  }
  words.insert(words.end(), {"--", OwnFolder() + "/dtrain-gpt", *config});
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::printf("dtrain train: training on 2 ranks. Ctrl-C saves and stops; dtrain train goes on.\n");
  std::fflush(stdout);
  return LaunchCommand(words, environment);
}

}  // namespace dtrain::launcher
