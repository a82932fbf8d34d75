// dtrain-checkpoint: shows and compares checkpoints, converts, copies and clears them away.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/console/command_line.h"
#include "base/status.h"
#include "base/version.h"
#include "checkpoint/tools/commands.h"

namespace dtrain::checkpoint {
namespace {

constexpr char kFooter[] =
    "DIR is a run directory (runs/gpt), its checkpoints/ folder, one step-* folder\n"
    "in checkpoints/, or the like in an object store (s3://bucket/runs/gpt).\n"
    "list, show, verify and diff change nothing.\n"
    "\nExamples:\n"
    "  dtrain checkpoint list runs/gpt\n"
    "  dtrain checkpoint show runs/gpt\n"
    "  dtrain checkpoint show runs/gpt --name step-000000001200.e1 --tensors\n"
    "  dtrain checkpoint verify runs/gpt && echo safe to move\n"
    "  dtrain checkpoint diff runs/gpt runs/other && echo the same\n"
    "  dtrain checkpoint export runs/gpt exported --dtype bf16\n"
    "  dtrain checkpoint prune runs/gpt --keep 3 --dry-run\n"
    "\nExit codes: 0 fine; 1 diff found a difference; 64 no checkpoint, a damaged one\n"
    "(the file is named), or something is in the way; 75 no room, a run holds the\n"
    "folder, or storage fails for now (diff: also a checkpoint that cannot be read).\n";

constexpr char kDirectory[] =
    "Run directory, its checkpoints/ folder or one step-* folder, also below s3://bucket";
constexpr char kWholeFolder[] = "Run directory or its checkpoints/ folder, also below s3://bucket";
constexpr char kName[] = "Checkpoint to take, by its folder's name. Default: the newest";

// CLI11's form of a check: what is wrong with `text`, or "".
std::string WhyNoTolerance(const std::string& text) {
  double value = 0;
  return absl::SimpleAtod(text, &value) && std::isfinite(value) && value >= 0
             ? ""
             : absl::StrCat("value ", text, " is no number from 0");
}

using Run = absl::StatusOr<int> (*)(const Arguments& arguments);

// Runs a subcommand that has no other exit code for success than 0.
template <absl::Status (*kRun)(const Arguments&)>
absl::StatusOr<int> ZeroOf(const Arguments& arguments) {
  DT_RETURN_IF_ERROR(kRun(arguments));
  return int{kExitOk};
}

// Adds subcommands to `app`, which put their options into one Arguments, and runs one of them.
class Commands {
 public:
  explicit Commands(CLI::App& app) : app_(app) {}

  // A subcommand with its example and --json.
  CLI::App& Add(const char* name, const char* text, const char* example, Run run) {
    CLI::App* const command = app_.add_subcommand(name, text);
    command->footer(absl::StrCat("Example:\n  dtrain checkpoint ", name, " ", example));
    command->add_flag("--json", arguments_.json, "Print JSON instead of text. Default: off");
    runs_[name] = run;
    return *command;
  }

  // Runs the subcommand that the command line names. REQUIRES: it was parsed.
  absl::StatusOr<int> RunChosen() const {
    return runs_.at(app_.get_subcommands().front()->get_name())(arguments_);
  }

  // The subcommands' common options.
  void Directory(CLI::App& command, const char* label = "DIR", const char* text = kDirectory) {
    command.add_option(label, arguments_.directory, text)->required();
  }
  void Other(CLI::App& command, const char* label, const char* text) {
    command.add_option(label, arguments_.other, text)->required();
  }
  void Name(CLI::App& command) { command.add_option("--name", arguments_.name, kName); }
  void Tensors(CLI::App& command, const char* which) {
    command.add_flag("--tensors", arguments_.tensors,
                     absl::StrCat("Also list ", which, ". Default: off"));
  }
  void Type(CLI::App& command) {
    command
        .add_option("--dtype", arguments_.dtype,
                    "Convert floats: fp32, bf16 or fp16. Default: as they are")
        ->option_text("TYPE")
        ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  }
  void DryRun(CLI::App& command, const char* what) {
    command.add_flag("--dry-run", arguments_.dry_run,
                     absl::StrCat("Only say what would ", what, ". Default: off"));
  }
  Arguments& arguments() { return arguments_; }

 private:
  CLI::App& app_;
  Arguments arguments_;
  std::map<std::string, Run> runs_;
};

void AddLooking(Commands& commands) {
  Arguments& arguments = commands.arguments();
  CLI::App& list =
      commands.Add("list", "List all checkpoints: step, time, ranks, ZeRO stage, size, state",
                   "--verify runs/gpt", ZeroOf<List>);
  commands.Directory(list);
  list.add_flag("--verify", arguments.verify, "Also read and check every byte. Default: off");
  CLI::App& show = commands.Add("show", "Show what one checkpoint holds",
                                "runs/gpt --name step-000000001200.e1", ZeroOf<Show>);
  commands.Directory(show);
  commands.Name(show);
  commands.Tensors(show, "every tensor");
  CLI::App& verify =
      commands.Add("verify", "Read every byte of all checkpoints; exit code 64 when one is damaged",
                   "runs/gpt/checkpoints/step-000000001200.e1", ZeroOf<VerifyAll>);
  commands.Directory(verify);
  CLI::App& diff = commands.Add(
      "diff",
      "Compare two checkpoints, however they are cut over ranks; exit code 1 when they differ",
      "runs/gpt runs/other --tolerance 1e-6", Diff);
  commands.Directory(diff, "A");
  commands.Other(diff, "B",
                 "The other one, named likewise; a run stands for its newest checkpoint");
  commands.Tensors(diff, "tensors that are equal");
  diff.add_option("--tolerance", arguments.tolerance,
                  "Largest absolute difference of floats that counts as equal. Default: 0, bits "
                  "are compared")
      ->option_text("NUMBER")
      ->check(WhyNoTolerance);
}

void AddConverting(Commands& commands) {
  CLI::App& to_folder =
      commands.Add("export", "Write the model of a checkpoint as a Hugging Face folder",
                   "runs/gpt exported --dtype bf16", ZeroOf<Export>);
  commands.Directory(to_folder, "CHECKPOINT");
  commands.Other(to_folder, "OUT", "Folder to write; nothing may be there");
  commands.Name(to_folder);
  commands.Type(to_folder);
  to_folder
      .add_option("--max-shard-size", commands.arguments().shard_size,
                  "Largest file of weights, as 5GB or 512MiB")
      ->option_text("SIZE")
      ->capture_default_str();
  CLI::App& from_files = commands.Add(
      "import",
      "Make a run directory from weights alone: a Hugging Face folder or a .safetensors file",
      "Qwen2.5-0.5B runs/tuned --dtype bf16", ZeroOf<Import>);
  commands.Directory(from_files, "SOURCE", "Hugging Face folder, or one .safetensors file");
  commands.Other(from_files, "RUN_DIR", "Run directory to write; nothing may be there");
  commands.Type(from_files);
}

void AddRetention(CLI::App& prune, Retention& keep) {
  prune.add_option("--keep", keep.newest, "Number of newest checkpoints to keep")
      ->required()
      ->check(CLI::Range(kKeepMin, 1'000'000));
  prune
      .add_option("--keep-every", keep.every,
                  "Also keep the steps that are multiples of it. Default: none")
      ->check(CLI::Range(int64_t{1}, kStepMax));
  CLI::Option* const best =
      prune
          .add_option("--keep-best", keep.best,
                      "Also keep so many with the best values of --metric. Default: none")
          ->check(CLI::Range(1, 1'000'000));
  CLI::Option* const metric = prune
                                  .add_option("--metric", keep.metric,
                                              "Metric for --keep-best, as eval/loss. Default: none")
                                  ->needs(best);
  best->needs(metric);
  prune
      .add_flag("--larger-is-better", keep.larger_is_better,
                "Values of --metric are better when they are larger. Default: off")
      ->needs(metric);
}

void AddClearing(Commands& commands) {
  CLI::App& prune =
      commands.Add("prune", "Remove old checkpoints; at least two that verify stay",
                   "runs/gpt --keep 3 --keep-every 10000 --dry-run", ZeroOf<PruneFolder>);
  commands.Directory(prune, "DIR", kWholeFolder);
  AddRetention(prune, commands.arguments().keep);
  commands.DryRun(prune, "go");
  CLI::App& repair = commands.Add(
      "repair", "Remove leftovers of crashed saves, mend `latest`, name damage, in an ended run",
      "runs/gpt --dry-run", ZeroOf<RepairFolder>);
  commands.Directory(repair, "DIR", kWholeFolder);
  commands.DryRun(repair, "be done");
  CLI::App& copy = commands.Add(
      "copy",
      "Copy a checkpoint, verified, to where another run loads it; an interrupted copy goes on",
      "runs/gpt s3://bucket/runs/gpt", ZeroOf<Copy>);
  commands.Directory(copy, "SOURCE");
  commands.Other(copy, "TARGET", "Folder of checkpoints, a run directory, or s3://bucket/prefix");
  commands.Name(copy);
}

int Main(int argc, char** argv) {
  CLI::App app("Shows and compares the checkpoints of a run, converts, copies and removes them.",
               kCheckpointProgram);
  app.footer(kFooter);
  app.set_version_flag("--version", std::string("dtrain-checkpoint ") + kVersion);
  app.require_subcommand(1);
  Commands commands(app);
  AddLooking(commands);
  AddConverting(commands);
  AddClearing(commands);
  if (const auto code = ParseCommandLine(app, argc, argv)) {
    return *code;
  }
  const absl::StatusOr<int> code = commands.RunChosen();
  return code.ok() ? *code : EndOf(kCheckpointProgram, code.status());
}

}  // namespace
}  // namespace dtrain::checkpoint

int main(int argc, char** argv) { return dtrain::checkpoint::Main(argc, argv); }
