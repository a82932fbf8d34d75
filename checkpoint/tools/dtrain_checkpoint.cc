// dtrain-checkpoint: looks at a folder of checkpoints. It changes nothing.
#include <sys/stat.h>

#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/log.h"
#include "base/progress_line.h"
#include "base/status.h"
#include "base/version.h"
#include "checkpoint/lineage.h"
#include "checkpoint/posix_storage.h"
#include "checkpoint/reader.h"
#include "checkpoint/verify.h"

namespace dtrain::checkpoint {
namespace {

constexpr char kExamples[] =
    "\nExamples:\n"
    "  dtrain-checkpoint list runs/gpt/checkpoints\n"
    "  dtrain-checkpoint list --verify runs/gpt/checkpoints\n"
    "  dtrain-checkpoint show runs/gpt/checkpoints\n"
    "  dtrain-checkpoint show runs/gpt/checkpoints --name step-000000001200.e1 --tensors\n"
    "  dtrain-checkpoint verify runs/gpt/checkpoints && echo safe to move\n"
    "\nDIR is a run's checkpoints/ folder, or one step-* folder in it.\n"
    "Exit codes: 0 fine; 64 no checkpoint, or a damaged one (the file is named).\n";

struct Target {
  std::unique_ptr<Storage> storage;
  std::optional<StepId> id;  // When the argument was one checkpoint's folder.
};

absl::StatusOr<Target> OpenTarget(std::string directory) {
  while (directory.size() > 1 && directory.back() == '/') {
    directory.pop_back();
  }
  struct stat info {};
  if (stat(directory.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return absl::NotFoundError(
        absl::StrCat(directory, " is not a folder; give a run's checkpoints/ folder"));
  }
  Target target;
  const size_t slash = directory.rfind('/');
  const std::string name = slash == std::string::npos ? directory : directory.substr(slash + 1);
  target.id = StepId::FromDirectoryName(name);
  if (target.id) {
    directory = slash == std::string::npos ? "." : slash == 0 ? "/" : directory.substr(0, slash);
  }
  DT_ASSIGN_OR_RETURN(target.storage, OpenPosixStorage(directory));
  return target;
}

std::string HumanBytes(uint64_t bytes) {
  if (bytes < 1000) {
    return absl::StrFormat("%d B", bytes);
  }
  double value = static_cast<double>(bytes);
  const char* unit = "B";
  for (const char* next : {"kB", "MB", "GB", "TB"}) {
    if (value < 1000) {
      break;
    }
    value /= 1000;
    unit = next;
  }
  return absl::StrFormat("%.1f %s", value, unit);
}

std::string Age(const Manifest& manifest) {
  const absl::Duration age = absl::Now() - absl::FromUnixMillis(manifest.created_unix_ms);
  return FormatDuration(std::max(0.0, absl::ToDoubleSeconds(age)));
}

absl::Status VerifyCheckpoint(Storage& storage, StepId id, Verify verify) {
  DT_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(storage, id));
  return VerifyFiles(storage, manifest, verify);
}

absl::StatusOr<std::vector<StepId>> Chosen(const Target& target) {
  if (target.id) {
    return std::vector<StepId>{*target.id};
  }
  DT_ASSIGN_OR_RETURN(std::vector<StepId> ids, ListCheckpoints(*target.storage));
  if (ids.empty()) {
    return absl::NotFoundError(
        absl::StrCat(target.storage->DisplayName(""), " holds no committed checkpoint"));
  }
  return ids;
}

absl::Status List(const std::string& directory, bool verify) {
  DT_ASSIGN_OR_RETURN(const Target target, OpenTarget(directory));
  DT_ASSIGN_OR_RETURN(const std::vector<StepId> ids, Chosen(target));
  DT_ASSIGN_OR_RETURN(const EpochMap epochs, ReadEpochs(*target.storage));
  const std::vector<StepId> line = OnLineage(Lineage(epochs), ids);
  const std::set<StepId> resumable(line.begin(), line.end());
  std::printf("%12s %6s %6s %10s %10s  %-9s %s\n", "step", "epoch", "ranks", "size", "age",
              "resumable", "state");
  absl::Status first;
  for (const StepId& id : ids) {
    const auto manifest = ReadManifest(*target.storage, id);
    absl::Status status = manifest.status();
    if (status.ok()) {
      status = VerifyFiles(*target.storage, *manifest, verify ? Verify::kHashes : Verify::kSizes);
    }
    first.Update(status);
    const std::string state = status.ok() ? (verify ? "verified" : "complete (--verify reads it)")
                                          : std::string(status.message());
    std::printf("%12s %6s %6s %10s %10s  %-9s %s\n", absl::StrCat(id.step).c_str(),
                absl::StrCat(id.epoch).c_str(),
                manifest.ok() ? absl::StrCat(manifest->world_size).c_str() : "?",
                manifest.ok() ? HumanBytes(manifest->data_bytes()).c_str() : "?",
                manifest.ok() ? Age(*manifest).c_str() : "?", resumable.contains(id) ? "yes" : "no",
                state.c_str());
  }
  return first.ok() ? first : absl::InvalidArgumentError("a checkpoint is damaged (see above)");
}

absl::Status Show(const std::string& directory, const std::string& name, bool tensors) {
  DT_ASSIGN_OR_RETURN(const Target target, OpenTarget(directory));
  StepId id;
  if (!name.empty()) {
    const std::optional<StepId> named = StepId::FromDirectoryName(name);
    if (!named) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", name, "\" is no checkpoint's name; one is step-000000001200.e1"));
    }
    id = *named;
  } else if (target.id) {
    id = *target.id;
  } else {
    DT_ASSIGN_OR_RETURN(const std::vector<StepId> ids, Chosen(target));
    id = ids.front();
  }
  DT_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(*target.storage, id));
  std::printf("%s\n", target.storage->DisplayName(id.DirectoryName()).c_str());
  std::printf("  %s, written %s ago by %d rank(s), job %s\n", id.ToString().c_str(),
              Age(manifest).c_str(), manifest.world_size, DumpJson(manifest.job).c_str());
  std::printf("  continues   %s\n", manifest.parent ? manifest.parent->ToString().c_str()
                                                    : "nothing (started from scratch)");
  std::printf("  ZeRO stage  %d, layout %s\n", manifest.state.zero_stage,
              manifest.state.layout_hash.c_str());
  std::printf("  engine      %s\n", DumpJson(manifest.state.engine).c_str());
  std::printf("  data        %s, %d skipped range(s)\n", DumpJson(manifest.state.data).c_str(),
              static_cast<int>(manifest.state.skip.size()));
  std::printf("  files       %s in all\n", HumanBytes(manifest.data_bytes()).c_str());
  for (const ManifestFile& file : manifest.files) {
    std::printf("    %10s  %s  %s\n", HumanBytes(file.checksum.bytes).c_str(),
                file.checksum.xxh3_128.c_str(), file.path.c_str());
  }
  std::printf("  tensors     %d%s\n", static_cast<int>(manifest.tensors.size()),
              tensors ? "" : " (--tensors lists them)");
  for (const ManifestTensor& tensor : manifest.tensors) {
    if (tensors) {
      std::printf("    %-5s [%s]  %s  %s\n", tensor.entry.dtype.c_str(),
                  absl::StrJoin(tensor.entry.shape, ", ").c_str(), tensor.entry.name.c_str(),
                  manifest.files[tensor.file].path.c_str());
    }
  }
  return absl::OkStatus();
}

absl::Status VerifyAll(const std::string& directory) {
  DT_ASSIGN_OR_RETURN(const Target target, OpenTarget(directory));
  DT_ASSIGN_OR_RETURN(const std::vector<StepId> ids, Chosen(target));
  int damaged = 0;
  for (const StepId& id : ids) {
    const absl::Status status = VerifyCheckpoint(*target.storage, id, Verify::kHashes);
    damaged += status.ok() ? 0 : 1;
    std::printf("%s  %s\n", id.DirectoryName().c_str(),
                status.ok() ? "every byte verified" : std::string(status.message()).c_str());
  }
  if (damaged > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(damaged, " of ", ids.size(), " checkpoint(s) are damaged; a run resumes from ",
                     "the newest good one"));
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  CLI::App app("Looks at a folder of dtrain checkpoints; changes nothing.", "dtrain-checkpoint");
  app.footer(kExamples);
  app.set_version_flag("--version", std::string("dtrain-checkpoint ") + kVersion);
  app.require_subcommand(1);
  std::string directory;
  std::string name;
  bool verify = false;
  bool tensors = false;

  CLI::App* list =
      app.add_subcommand("list", "A table: step, epoch, size, age, whether it is whole");
  list->add_option("DIR", directory, "A run's checkpoints/ folder")->required();
  list->add_flag("--verify", verify, "Read and check every byte");
  list->footer("\nExample:\n  dtrain-checkpoint list --verify runs/gpt/checkpoints\n");

  CLI::App* show = app.add_subcommand("show", "What one checkpoint holds; the newest by default");
  show->add_option("DIR", directory, "A run's checkpoints/ folder, or one step-* folder")
      ->required();
  show->add_option("--name", name, "Which checkpoint, as its folder is called");
  show->add_flag("--tensors", tensors, "List every tensor");
  show->footer("\nExample:\n  dtrain-checkpoint show runs/gpt/checkpoints --tensors\n");

  CLI::App* check = app.add_subcommand("verify", "Reads every byte; exit 64 names a damaged file");
  check->add_option("DIR", directory, "A run's checkpoints/ folder, or one step-* folder")
      ->required();
  check->footer(
      "\nExample:\n  dtrain-checkpoint verify runs/gpt/checkpoints/step-000000001200.e1\n");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {  // CLI11 has no other way to say so.
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  const absl::Status status = list->parsed()   ? List(directory, verify)
                              : show->parsed() ? Show(directory, name, tensors)
                                               : VerifyAll(directory);
  if (!status.ok()) {
    std::fprintf(stderr, "dtrain-checkpoint: %s\n", std::string(status.message()).c_str());
  }
  return ExitCodeFor(status);
}

}  // namespace
}  // namespace dtrain::checkpoint

int main(int argc, char** argv) { return dtrain::checkpoint::Main(argc, argv); }
