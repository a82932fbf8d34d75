// dtrain-checkpoint: shows and compares checkpoints, converts, copies and clears them away.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <string>

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

constexpr char kDirectory[] = "Run directory, its checkpoints/ folder, or one step-* folder";
constexpr char kName[] = "Checkpoint to take, by its folder's name. Default: the newest";

// CLI11's form of a check: what is wrong with `text`, or "".
std::string WhyNoTolerance(const std::string& text) {
  double value = 0;
  return absl::SimpleAtod(text, &value) && std::isfinite(value) && value >= 0
             ? ""
             : absl::StrCat("value ", text, " is no number from 0");
}

// Adds a subcommand with its example and --json.
CLI::App* Add(CLI::App& app, Arguments& arguments, const char* name, const char* text,
              const char* example) {
  CLI::App* const command = app.add_subcommand(name, text);
  command->footer(absl::StrCat("Example:\n  dtrain checkpoint ", name, " ", example));
  command->add_flag("--json", arguments.json, "Print JSON instead of text. Default: off");
  return command;
}

void AddLooking(CLI::App& app, Arguments& arguments) {
  CLI::App* const list =
      Add(app, arguments, "list",
          "List all checkpoints: step, time, ranks, ZeRO stage, size, state", "--verify runs/gpt");
  list->add_option("DIR", arguments.directory, kDirectory)->required();
  list->add_flag("--verify", arguments.verify, "Also read and check every byte. Default: off");
  CLI::App* const show = Add(app, arguments, "show", "Show what one checkpoint holds",
                             "runs/gpt --name step-000000001200.e1");
  show->add_option("DIR", arguments.directory, kDirectory)->required();
  show->add_option("--name", arguments.name,
                   "Checkpoint to show, by its folder's name. Default: the newest");
  show->add_flag("--tensors", arguments.tensors, "Also list every tensor. Default: off");
  CLI::App* const verify =
      Add(app, arguments, "verify",
          "Read every byte of all checkpoints; exit code 64 when one is damaged",
          "runs/gpt/checkpoints/step-000000001200.e1");
  verify->add_option("DIR", arguments.directory, kDirectory)->required();
  CLI::App* const diff =
      Add(app, arguments, "diff",
          "Compare two checkpoints, however they are cut over ranks; exit code 1 when they differ",
          "runs/gpt runs/other --tolerance 1e-6");
  diff->add_option("A", arguments.directory, kDirectory)->required();
  diff->add_option("B", arguments.other, "The same of the other; of a run, the newest is taken")
      ->required();
  diff->add_flag("--tensors", arguments.tensors, "Also list tensors that are equal. Default: off");
  diff->add_option("--tolerance", arguments.tolerance,
                   "Largest absolute difference of floats that counts as equal. Default: 0, bits "
                   "are compared")
      ->option_text("NUMBER")
      ->check(WhyNoTolerance);
}

void AddConverting(CLI::App& app, Arguments& arguments) {
  const CLI::IsMember types({"fp32", "bf16", "fp16"});
  const auto add_type = [&](CLI::App* command) {
    command
        ->add_option("--dtype", arguments.dtype,
                     "Convert floats: fp32, bf16 or fp16. Default: as they are")
        ->option_text("TYPE")
        ->check(types);
  };
  CLI::App* const to_folder =
      Add(app, arguments, "export", "Write the model of a checkpoint as a Hugging Face folder",
          "runs/gpt exported --dtype bf16");
  to_folder->add_option("CHECKPOINT", arguments.directory, kDirectory)->required();
  to_folder->add_option("OUT", arguments.other, "Folder to write; nothing may be there")
      ->required();
  to_folder->add_option("--name", arguments.name, kName);
  add_type(to_folder);
  to_folder
      ->add_option("--max-shard-size", arguments.shard_size,
                   "Largest file of weights, as 5GB or 512MiB")
      ->option_text("SIZE")
      ->capture_default_str();
  CLI::App* const from_files =
      Add(app, arguments, "import",
          "Make a run directory of weights alone: a Hugging Face folder or a .safetensors file",
          "Qwen2.5-0.5B runs/tuned --dtype bf16");
  from_files
      ->add_option("SOURCE", arguments.directory, "Hugging Face folder, or one .safetensors file")
      ->required();
  from_files->add_option("RUN_DIR", arguments.other, "Run directory to write; nothing may be there")
      ->required();
  add_type(from_files);
}

void AddClearing(CLI::App& app, Arguments& arguments) {
  CLI::App* const prune =
      Add(app, arguments, "prune", "Remove old checkpoints; at least two that verify stay",
          "runs/gpt --keep 3 --keep-every 10000 --dry-run");
  prune->add_option("DIR", arguments.directory, "Run directory or its checkpoints/ folder")
      ->required();
  prune->add_option("--keep", arguments.keep.newest, "Number of newest checkpoints to keep")
      ->required()
      ->check(CLI::Range(kKeepMin, 1'000'000));
  prune
      ->add_option("--keep-every", arguments.keep.every,
                   "Also keep the steps that are multiples of it. Default: none")
      ->check(CLI::Range(int64_t{1}, kStepMax));
  CLI::Option* const best =
      prune
          ->add_option("--keep-best", arguments.keep.best,
                       "Also keep so many with the best values of --metric. Default: none")
          ->check(CLI::Range(1, 1'000'000));
  CLI::Option* const metric =
      prune
          ->add_option("--metric", arguments.keep.metric,
                       "Metric for --keep-best, as eval/loss. Default: none")
          ->needs(best);
  best->needs(metric);
  prune
      ->add_flag("--larger-is-better", arguments.keep.larger_is_better,
                 "Values of --metric are better when they are larger. Default: off")
      ->needs(metric);
  prune->add_flag("--dry-run", arguments.dry_run, "Only say what would go. Default: off");
  CLI::App* const repair =
      Add(app, arguments, "repair",
          "Remove what crashed saves left, mend `latest`, name damage; needs an ended run",
          "runs/gpt --dry-run");
  repair->add_option("DIR", arguments.directory, "Run directory or its checkpoints/ folder")
      ->required();
  repair->add_flag("--dry-run", arguments.dry_run, "Only say what would be done. Default: off");
  CLI::App* const copy =
      Add(app, arguments, "copy",
          "Copy a checkpoint, verified, to where another run loads it; an interrupted copy goes on",
          "runs/gpt s3://bucket/runs/gpt");
  copy->add_option("SOURCE", arguments.directory, kDirectory)->required();
  copy->add_option("TARGET", arguments.other,
                   "Folder of checkpoints, a run directory, or s3://bucket/prefix")
      ->required();
  copy->add_option("--name", arguments.name, kName);
}

int Main(int argc, char** argv) {
  CLI::App app("Shows and compares the checkpoints of a run, converts, copies and removes them.",
               kCheckpointProgram);
  app.footer(kFooter);
  app.set_version_flag("--version", std::string("dtrain-checkpoint ") + kVersion);
  app.require_subcommand(1);
  Arguments arguments;
  AddLooking(app, arguments);
  AddConverting(app, arguments);
  AddClearing(app, arguments);
  if (const auto code = ParseCommandLine(app, argc, argv)) {
    return *code;
  }
  const std::string command = app.get_subcommands().front()->get_name();
  if (command == "diff") {
    const absl::StatusOr<int> code = Diff(arguments);
    return code.ok() ? *code : EndOf(kCheckpointProgram, code.status());
  }
  return EndOf(kCheckpointProgram, command == "list"     ? List(arguments)
                                   : command == "show"   ? Show(arguments)
                                   : command == "verify" ? VerifyAll(arguments)
                                   : command == "export" ? Export(arguments)
                                   : command == "import" ? Import(arguments)
                                   : command == "prune"  ? PruneFolder(arguments)
                                   : command == "repair" ? RepairFolder(arguments)
                                                         : Copy(arguments));
}

}  // namespace
}  // namespace dtrain::checkpoint

int main(int argc, char** argv) { return dtrain::checkpoint::Main(argc, argv); }
