// dtrain-checkpoint: lists, shows and verifies a folder of checkpoints, and changes nothing.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/console/command_line.h"
#include "base/console/progress_line.h"
#include "base/status.h"
#include "base/version.h"
#include "checkpoint/restore/lineage.h"
#include "checkpoint/restore/verify.h"
#include "checkpoint/tools/describe.h"
#include "checkpoint/tools/open_target.h"

namespace dtrain::checkpoint {
namespace {

constexpr char kFooter[] =
    "DIR is a run directory (runs/gpt), its checkpoints/ folder, or one step-* folder\n"
    "in checkpoints/.\n"
    "\nExamples:\n"
    "  dtrain checkpoint list runs/gpt\n"
    "  dtrain checkpoint show runs/gpt\n"
    "  dtrain checkpoint show runs/gpt --name step-000000001200.e1 --tensors\n"
    "  dtrain checkpoint verify runs/gpt && echo safe to move\n"
    "\nExit codes: 0 fine; 64 no checkpoint, or a damaged one (the file is named).\n";

struct Arguments {
  std::string directory;
  std::string name;
  bool verify = false;
  bool tensors = false;
  bool json = false;
};

void PrintJson(const Json& json) { std::printf("%s\n", DumpJson(json, 2).c_str()); }

void PrintListHead() {
  std::printf("%12s  %-23s  %8s  %5s  %5s  %9s  %-6s  %s\n", "step", "written", "age", "ranks",
              "stage", "size", "resume", "state");
}

void PrintListRow(StepId id, const Manifest* manifest, bool resumable, const std::string& state) {
  const auto known = [manifest](auto text) {
    return manifest == nullptr ? std::string("?") : absl::StrCat(text(*manifest));
  };
  const absl::Time now = absl::Now();
  absl::PrintF(
      "%12s  %-23s  %8s  %5s  %5s  %9s  %-6s  %s\n", WithThousands(id.step),
      known([](const Manifest& m) { return TimeText(m.created_unix_ms); }),
      known([&](const Manifest& m) { return FormatAge(AgeSeconds(m.created_unix_ms, now)); }),
      known([](const Manifest& m) { return m.world_size; }),
      known([](const Manifest& m) { return m.state.zero_stage; }),
      known([](const Manifest& m) { return FormatBytes(static_cast<double>(m.data_bytes())); }),
      resumable ? "yes" : "no", state);
}

absl::Status List(const Arguments& arguments) {
  DT_ASSIGN_OR_RETURN(const Target target, OpenTarget(arguments.directory));
  DT_ASSIGN_OR_RETURN(const std::vector<StepId> ids, CheckpointsOf(target));
  DT_ASSIGN_OR_RETURN(const EpochMap epochs, ReadEpochs(*target.storage));
  const std::vector<StepId> line = OnLineage(Lineage(epochs), ids);
  const std::set<StepId> resumable(line.begin(), line.end());
  Json rows = Json::array();
  if (!arguments.json) {
    absl::PrintF("%s\n", target.storage->DisplayName(""));
    PrintListHead();
  }
  absl::Status first;
  for (const StepId& id : ids) {
    const auto manifest = ReadManifest(*target.storage, id);
    absl::Status status = manifest.status();
    if (status.ok()) {
      status = VerifyFiles(*target.storage, *manifest,
                           arguments.verify ? Verify::kHashes : Verify::kSizes);
    }
    first.Update(status);
    const Manifest* const known = manifest.ok() ? &*manifest : nullptr;
    const bool resumes = resumable.contains(id);
    if (arguments.json) {
      rows.push_back(ListedJson(id, known, resumes, status));
    } else {
      PrintListRow(id, known, resumes,
                   status.ok() ? (arguments.verify ? "verified" : "complete")
                               : absl::StrCat("damaged: ", status.message()));
    }
  }
  if (arguments.json) {
    PrintJson(rows);
  } else if (!arguments.verify && first.ok()) {
    std::printf("\nAll files are there, with the right sizes. --verify also reads every byte.\n");
  }
  return first.ok() ? first : absl::InvalidArgumentError("a checkpoint is damaged (see above)");
}

absl::Status Show(const Arguments& arguments) {
  DT_ASSIGN_OR_RETURN(const Target target, OpenTarget(arguments.directory));
  DT_ASSIGN_OR_RETURN(const StepId id, ChooseOne(target, arguments.name));
  DT_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(*target.storage, id));
  const std::string path = target.storage->DisplayName(id.DirectoryName());
  if (arguments.json) {
    PrintJson(DescribeJson(manifest, path));
  } else {
    absl::PrintF("%s", DescribeText(manifest, path, absl::Now(), arguments.tensors));
  }
  return absl::OkStatus();
}

absl::Status VerifyAll(const Arguments& arguments) {
  DT_ASSIGN_OR_RETURN(const Target target, OpenTarget(arguments.directory));
  DT_ASSIGN_OR_RETURN(const std::vector<StepId> ids, CheckpointsOf(target));
  size_t damaged = 0;
  Json rows = Json::array();
  for (const StepId& id : ids) {
    const auto manifest = ReadManifest(*target.storage, id);
    const absl::Status status = manifest.ok()
                                    ? VerifyFiles(*target.storage, *manifest, Verify::kHashes)
                                    : manifest.status();
    damaged += status.ok() ? 0 : 1;
    if (arguments.json) {
      rows.push_back(
          {{"name", id.DirectoryName()},
           {"step", id.step},
           {"ok", status.ok()},
           {"problem", status.ok() ? Json(nullptr) : Json(std::string(status.message()))}});
    } else {
      absl::PrintF(
          "%s  %s\n", id.DirectoryName(),
          status.ok()
              ? absl::StrFormat("good: %d files, %s, every byte verified", manifest->files.size(),
                                FormatBytes(static_cast<double>(manifest->data_bytes())))
              : absl::StrCat("damaged: ", status.message()));
      std::fflush(stdout);  // Verifying the next checkpoint may take minutes.
    }
  }
  if (arguments.json) {
    PrintJson(rows);
  }
  if (damaged > 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d of %d checkpoints %s damaged; a run resumes from the newest good one",
                        damaged, ids.size(), damaged == 1 ? "is" : "are"));
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  CLI::App app("Shows the checkpoints of a run and checks them. Changes nothing.",
               "dtrain checkpoint");
  app.footer(kFooter);
  app.set_version_flag("--version", std::string("dtrain-checkpoint ") + kVersion);
  app.require_subcommand(1);
  Arguments arguments;
  const auto add = [&](const char* name, const char* text, const char* example) {
    CLI::App* const command = app.add_subcommand(name, text);
    command
        ->add_option("DIR", arguments.directory,
                     "Run directory, its checkpoints/ folder, or one step-* folder")
        ->required();
    command->add_flag("--json", arguments.json, "Print JSON instead of text. Default: off");
    command->footer(absl::StrCat("Example:\n  dtrain checkpoint ", name, " ", example));
    return command;
  };
  CLI::App* const list =
      add("list", "List all checkpoints: step, time, ranks, ZeRO stage, size, state",
          "--verify runs/gpt");
  list->add_flag("--verify", arguments.verify, "Also read and check every byte. Default: off");
  CLI::App* const show =
      add("show", "Show what one checkpoint holds", "runs/gpt --name step-000000001200.e1");
  show->add_option("--name", arguments.name,
                   "Checkpoint to show, by its folder's name. Default: the newest");
  show->add_flag("--tensors", arguments.tensors, "Also list every tensor. Default: off");
  add("verify", "Read every byte of all checkpoints; exit code 64 when one is damaged",
      "runs/gpt/checkpoints/step-000000001200.e1");
  if (const auto code = ParseCommandLine(app, argc, argv)) {
    return *code;
  }
  return EndOf("dtrain checkpoint", list->parsed()   ? List(arguments)
                                    : show->parsed() ? Show(arguments)
                                                     : VerifyAll(arguments));
}

}  // namespace
}  // namespace dtrain::checkpoint

int main(int argc, char** argv) { return dtrain::checkpoint::Main(argc, argv); }
