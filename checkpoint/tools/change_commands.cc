// `dtrain checkpoint export`, `import`, `prune`, `repair` and `copy`, which write folders.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/console/progress_line.h"
#include "base/file.h"
#include "base/status.h"
#include "checkpoint/commit/copy_checkpoint.h"
#include "checkpoint/restore/open_target.h"
#include "checkpoint/restore/verify.h"
#include "checkpoint/storage/posix_storage.h"
#include "checkpoint/storage/s3/s3_storage.h"
#include "checkpoint/tools/commands.h"
#include "checkpoint/tools/export.h"
#include "checkpoint/tools/folder_users.h"
#include "checkpoint/tools/import.h"
#include "checkpoint/tools/prune.h"
#include "checkpoint/tools/repair.h"

namespace dtrain::checkpoint {
namespace {

std::string Size(uint64_t bytes) { return FormatBytes(static_cast<double>(bytes)); }

std::string Count(size_t number, const char* what) {
  return absl::StrCat(WithThousands(static_cast<int64_t>(number)), " ", what,
                      number == 1 ? "" : "s");
}

std::optional<DType> TypeOf(const std::string& name) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    if (DTypeName(dtype) == name) {
      return dtype;
    }
  }
  return std::nullopt;
}

// The folder of checkpoints that a command changes as a whole.
absl::StatusOr<Target> OpenWhole(const char* command, const std::string& directory) {
  DT_ASSIGN_OR_RETURN(Target target, OpenTarget(directory));
  if (target.id.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(command, " takes a run directory or its folder of checkpoints; ", directory,
                     " is one checkpoint"));
  }
  return target;
}

// The storage to which checkpoints are copied.
struct CopyTarget {
  std::unique_ptr<Storage> storage;
  std::string created;  // The folder, if it was not there before.
};

absl::StatusOr<CopyTarget> OpenCopyTarget(std::string path) {
  DT_ASSIGN_OR_RETURN(path, PlaceOf(std::move(path)));
  CopyTarget target;
  struct stat info {};
  const bool is_new = !IsS3Url(path) && stat(path.c_str(), &info) != 0 && errno == ENOENT;
  if (is_new) {
    DT_ASSIGN_OR_RETURN(target.storage, OpenPosixStorage(path));
    target.created = path;
    return target;
  }
  DT_ASSIGN_OR_RETURN(Target there, OpenWhole("copy", path));
  target.storage = std::move(there.storage);
  if (target.storage->DisplayName("") == path && FileExists(path + "/config.json")) {
    // A run directory without checkpoints, to which they belong in a folder of their own.
    target.created = path + "/checkpoints";
    DT_ASSIGN_OR_RETURN(target.storage, OpenPosixStorage(target.created));
  }
  return target;
}

std::string HowToStart(const std::string& folder) {
  return absl::EndsWith(folder, "/checkpoints")
             ? absl::StrCat("--run-dir ", std::filesystem::path(folder).parent_path().string())
             : absl::StrCat("checkpoint.dir=", folder);
}

void PrintLeftovers(const RepairPlan& plan, bool dry_run) {
  for (const Leftover& leftover : plan.leftovers) {
    const bool goes = leftover.why_it_stays.empty();
    absl::PrintF("%s  %s, %s: %s%s\n",
                 !goes     ? "leaves"
                 : dry_run ? "would remove"
                           : "removed",
                 leftover.path, Size(leftover.bytes),
                 leftover.is_folder ? "a save that did not end" : "a temporary file",
                 goes ? "" : absl::StrCat("; ", leftover.why_it_stays));
  }
}

void PrintRepair(const RepairPlan& plan, bool dry_run) {
  PrintLeftovers(plan, dry_run);
  for (const Damage& damage : plan.damage) {
    absl::PrintF("damaged  %s: %s\n", damage.name, damage.what);
  }
  if (!plan.latest.empty()) {
    absl::PrintF("%s  latest: names %s\n", dry_run ? "would rewrite" : "rewrote", plan.latest);
  }
  if (plan.leftovers.empty() && plan.damage.empty() && plan.latest.empty()) {
    absl::PrintF("Nothing to repair: %s, every byte verified.\n",
                 Count(plan.checkpoints, "checkpoint"));
  }
}

Json RepairJson(const RepairPlan& plan, bool dry_run) {
  Json json = {{"dry_run", dry_run},
               {"checkpoints", plan.checkpoints},
               {"latest", plan.latest.empty() ? Json(nullptr) : Json(plan.latest)},
               {"begins_epoch", plan.fence}};
  json["leftovers"] = Json::array();
  for (const Leftover& leftover : plan.leftovers) {
    json["leftovers"].push_back(
        {{"path", leftover.path},
         {"bytes", leftover.bytes},
         {"removed", leftover.why_it_stays.empty() && !dry_run},
         {"stays_because",
          leftover.why_it_stays.empty() ? Json(nullptr) : Json(leftover.why_it_stays)}});
  }
  json["damage"] = Json::array();
  for (const Damage& damage : plan.damage) {
    json["damage"].push_back({{"name", damage.name}, {"problem", damage.what}});
  }
  return json;
}

// Unavailable names a process that has the folder open.
absl::Status CheckUnused(Storage& storage) {
  const std::string folder = storage.DisplayName("");
  const auto users = IsS3Url(folder) ? std::vector<FolderUser>() : UsersOf(folder);
  if (users.empty()) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(absl::StrFormat(
      "process %d (%s)%s uses %s: a run holds it; wait for its end or stop it, then repair",
      users[0].process, users[0].program,
      users.size() > 1 ? absl::StrCat(" and ", users.size() - 1, " more") : "", folder));
}

Json PruneJson(const PrunePlan& plan, bool dry_run) {
  Json json = {{"dry_run", dry_run},
               {"removed", Json::array()},
               {"stay", Json::array()},
               {"damaged", plan.damaged}};
  for (const PrunedCheckpoint& checkpoint : plan.remove) {
    json["removed"].push_back(
        {{"name", checkpoint.id.DirectoryName()}, {"bytes", checkpoint.bytes}});
  }
  for (const StepId& id : plan.stay) {
    json["stay"].push_back(id.DirectoryName());
  }
  return json;
}

}  // namespace

absl::StatusOr<uint64_t> ParseSize(const std::string& option, const std::string& text) {
  constexpr std::pair<const char*, uint64_t> kUnits[] = {{"KIB", 1ULL << 10},
                                                         {"MIB", 1ULL << 20},
                                                         {"GIB", 1ULL << 30},
                                                         {"TIB", 1ULL << 40},
                                                         {"KB", 1'000},
                                                         {"MB", 1'000'000},
                                                         {"GB", 1'000'000'000},
                                                         {"TB", 1'000'000'000'000},
                                                         {"B", 1},
                                                         {"", 1}};
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  uint64_t number = 0;
  for (const auto& [unit, bytes] : kUnits) {
    uint64_t size = 0;
    if (absl::EqualsIgnoreCase(text.substr(digits), unit) &&
        absl::SimpleAtoi(text.substr(0, digits), &number) && number > 0 &&
        !__builtin_mul_overflow(number, bytes, &size)) {
      return size;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat(option, " is \"", text,
                   "\"; want a whole number above 0 with or without a unit, as 5GB or "
                   "512MiB"));
}

absl::Status Export(const Arguments& arguments) {
  FolderExportOptions options;
  options.dtype = TypeOf(arguments.dtype);
  DT_ASSIGN_OR_RETURN(options.shard_bytes_max, ParseSize("--max-shard-size", arguments.shard_size));
  DT_ASSIGN_OR_RETURN(const Target target, OpenTarget(arguments.directory));
  DT_ASSIGN_OR_RETURN(const StepId id, ChooseOne(target, arguments.name));
  DT_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(*target.storage, id));
  CheckpointTensors from(*target.storage, std::move(manifest));
  DT_ASSIGN_OR_RETURN(const FolderExport result,
                      ExportToFolder(*target.storage, from, arguments.other, options));
  if (arguments.json) {
    PrintJson({{"path", arguments.other},
               {"from", from.DisplayName()},
               {"step", id.step},
               {"tensors", result.tensors},
               {"files", result.files},
               {"bytes", result.bytes},
               {"left_out", result.left_out}});
    return absl::OkStatus();
  }
  absl::PrintF("exported step %s: %s (%s) in %s, every byte verified, to %s\n",
               WithThousands(id.step), Count(result.tensors, "tensor"), Size(result.bytes),
               Count(result.files, "file"), arguments.other);
  if (result.left_out > 0) {
    absl::PrintF("left out: %s of engines after the first\n", Count(result.left_out, "tensor"));
  }
  return absl::OkStatus();
}

absl::Status Import(const Arguments& arguments) {
  WeightImportOptions options;
  options.dtype = TypeOf(arguments.dtype);
  DT_ASSIGN_OR_RETURN(const WeightImport result,
                      ImportWeights(arguments.directory, arguments.other, options));
  const std::string path =
      std::filesystem::path(arguments.other) / "checkpoints" / result.id.DirectoryName();
  if (arguments.json) {
    PrintJson({{"path", path},
               {"from", arguments.directory},
               {"tensors", result.tensors},
               {"bytes", result.bytes}});
    return absl::OkStatus();
  }
  absl::PrintF(
      "imported %s (%s) to %s\nIt holds weights alone: a run with --run-dir %s starts from them at "
      "step 0, in the type in which it trains, with new optimizer states.\n",
      Count(result.tensors, "tensor"), Size(result.bytes), path, arguments.other);
  return absl::OkStatus();
}

absl::Status PruneFolder(const Arguments& arguments) {
  DT_ASSIGN_OR_RETURN(const Target target, OpenWhole("prune", arguments.directory));
  DT_RETURN_IF_ERROR(CheckpointsOf(target).status());  // A folder without one is refused.
  DT_ASSIGN_OR_RETURN(const PrunePlan plan, PlanPrune(*target.storage, arguments.keep));
  uint64_t bytes = 0;
  const auto print = [&](const PrunedCheckpoint& checkpoint) {
    bytes += checkpoint.bytes;
    if (!arguments.json) {
      absl::PrintF("%s  %s  %s\n", arguments.dry_run ? "would remove" : "removed",
                   checkpoint.id.DirectoryName(), Size(checkpoint.bytes));
      std::fflush(stdout);
    }
  };
  if (!arguments.json) {
    for (const std::string& problem : plan.damaged) {
      absl::PrintF("does not count as kept  %s\n", problem);
    }
  }
  if (arguments.dry_run) {
    for (const PrunedCheckpoint& checkpoint : plan.remove) {
      print(checkpoint);
    }
  } else {
    DT_RETURN_IF_ERROR(Prune(*target.storage, plan, print));
  }
  if (arguments.json) {
    PrintJson(PruneJson(plan, arguments.dry_run));
  } else {
    absl::PrintF("%s %s, %s; %d stay\n", arguments.dry_run ? "Would remove" : "Removed",
                 Count(plan.remove.size(), "checkpoint"), Size(bytes), plan.stay.size());
  }
  return absl::OkStatus();
}

absl::Status RepairFolder(const Arguments& arguments) {
  DT_ASSIGN_OR_RETURN(const Target target, OpenWhole("repair", arguments.directory));
  DT_RETURN_IF_ERROR(CheckUnused(*target.storage));
  DT_ASSIGN_OR_RETURN(const RepairPlan plan, PlanRepair(*target.storage));
  if (!arguments.dry_run) {
    DT_RETURN_IF_ERROR(CheckUnused(*target.storage));  // Reading may have taken an hour.
    DT_RETURN_IF_ERROR(Repair(*target.storage, plan));
  }
  if (arguments.json) {
    PrintJson(RepairJson(plan, arguments.dry_run));
  } else {
    PrintRepair(plan, arguments.dry_run);
  }
  if (!plan.damage.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        Count(plan.damage.size(), "problem"),
        " left, which cannot be repaired; nothing of it was removed, and a run resumes from the "
        "newest good checkpoint"));
  }
  return absl::OkStatus();
}

absl::Status Copy(const Arguments& arguments) {
  DT_ASSIGN_OR_RETURN(const Target source, OpenTarget(arguments.directory));
  DT_ASSIGN_OR_RETURN(const StepId id, ChooseOne(source, arguments.name));
  DT_RETURN_IF_ERROR(ReadManifest(*source.storage, id).status());  // Before a folder is made.
  DT_ASSIGN_OR_RETURN(CopyTarget target, OpenCopyTarget(arguments.other));
  const auto print = [&](const ManifestFile& file, bool was_there) {
    if (!arguments.json) {
      absl::PrintF("%s  %s  %s\n", was_there ? "is there" : "copied", file.path,
                   Size(file.checksum.bytes));
      std::fflush(stdout);
    }
  };
  const absl::StatusOr<CopyResult> result =
      CopyCheckpoint(*source.storage, id, *target.storage, print);
  if (!result.ok()) {
    if (!target.created.empty()) {
      rmdir(target.created.c_str());  // It stays if something is in it, from which to go on.
    }
    return result.status();
  }
  const std::string path = target.storage->DisplayName(id.DirectoryName());
  if (arguments.json) {
    PrintJson({{"path", path},
               {"was_there", result->was_there},
               {"files", result->files},
               {"files_that_were_there", result->files_kept},
               {"bytes", result->bytes},
               {"epoch_records", result->epochs}});
    return absl::OkStatus();
  }
  absl::PrintF(
      "%s: %s, %s, every byte verified, %s\nA run with %s goes on from it, unless a newer "
      "checkpoint is there.\n",
      result->was_there ? "was copied before" : "copied", Count(result->files, "file"),
      Size(result->bytes), path, HowToStart(target.storage->DisplayName("")));
  return absl::OkStatus();
}

}  // namespace dtrain::checkpoint
