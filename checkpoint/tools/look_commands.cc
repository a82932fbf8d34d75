// `dtrain checkpoint list`, `show`, `verify` and `diff`, which change nothing.
#include <cstdio>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/console/progress_line.h"
#include "base/status.h"
#include "checkpoint/restore/lineage.h"
#include "checkpoint/restore/open_target.h"
#include "checkpoint/restore/verify.h"
#include "checkpoint/tools/commands.h"
#include "checkpoint/tools/describe.h"
#include "checkpoint/tools/diff.h"

namespace dtrain::checkpoint {
namespace {

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

// Says to people what is wrong with a checkpoint. One that may not be read may be whole.
std::string Problem(const absl::Status& status) {
  return absl::StrCat(absl::IsPermissionDenied(status) ? "unreadable: " : "damaged: ",
                      status.message());
}

// The error of a checkpoint that is there and cannot be read, with the exit code for it.
absl::Status Unreadable(const absl::Status& status) {
  return absl::UnavailableError(status.message());
}

// The manifest of a checkpoint that is to be read. Where there is none the name was wrong; other
// errors are those of a checkpoint that is there and cannot be read.
absl::StatusOr<Manifest> ReadableManifest(Storage& storage, StepId id) {
  absl::StatusOr<Manifest> manifest = ReadManifest(storage, id);
  if (!manifest.ok() && !absl::IsNotFound(manifest.status())) {
    return Unreadable(manifest.status());
  }
  return manifest;
}

}  // namespace

void PrintJson(const Json& json) { std::printf("%s\n", DumpJson(json, 2).c_str()); }

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
    const bool resumes = resumable.contains(id) && status.ok();
    if (arguments.json) {
      rows.push_back(ListedJson(id, known, resumes, status));
    } else {
      PrintListRow(id, known, resumes,
                   status.ok() ? (arguments.verify ? "verified" : "complete") : Problem(status));
    }
  }
  if (arguments.json) {
    PrintJson(rows);
  } else if (!arguments.verify && first.ok()) {
    std::printf("\nAll files are there, with the right sizes. --verify also reads every byte.\n");
  }
  return first.ok() ? first
                    : absl::InvalidArgumentError(absl::StrCat(
                          "a checkpoint ",
                          absl::IsPermissionDenied(first) ? "cannot be read" : "is damaged",
                          " (see above)"));
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
  size_t unreadable = 0;  // A run stops there, and does not go on from an older one.
  Json rows = Json::array();
  for (const StepId& id : ids) {
    const auto manifest = ReadManifest(*target.storage, id);
    const absl::Status status = manifest.ok()
                                    ? VerifyFiles(*target.storage, *manifest, Verify::kHashes)
                                    : manifest.status();
    unreadable += absl::IsPermissionDenied(status) ? 1 : 0;
    damaged += status.ok() || absl::IsPermissionDenied(status) ? 0 : 1;
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
              : Problem(status));
      std::fflush(stdout);  // Verifying the next checkpoint may take minutes.
    }
  }
  if (arguments.json) {
    PrintJson(rows);
  }
  if (unreadable > 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d of %d checkpoints cannot be read: run this as the user who trains, or "
                        "make them readable%s",
                        unreadable, ids.size(),
                        damaged == 0 ? "" : absl::StrFormat("; %d more are damaged", damaged)));
  }
  if (damaged > 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d of %d checkpoints %s damaged; a run resumes from the newest good one",
                        damaged, ids.size(), damaged == 1 ? "is" : "are"));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> Diff(const Arguments& arguments) {
  DT_ASSIGN_OR_RETURN(const Target target_a, OpenTarget(arguments.directory));
  DT_ASSIGN_OR_RETURN(const Target target_b, OpenTarget(arguments.other));
  DT_ASSIGN_OR_RETURN(const StepId id_a, ChooseOne(target_a, ""));
  DT_ASSIGN_OR_RETURN(const StepId id_b, ChooseOne(target_b, ""));
  DT_ASSIGN_OR_RETURN(Manifest manifest_a, ReadableManifest(*target_a.storage, id_a));
  DT_ASSIGN_OR_RETURN(Manifest manifest_b, ReadableManifest(*target_b.storage, id_b));
  CheckpointTensors a(*target_a.storage, std::move(manifest_a));
  CheckpointTensors b(*target_b.storage, std::move(manifest_b));
  const absl::StatusOr<DiffReport> report =
      DiffCheckpoints(a, b, {.tolerance = arguments.tolerance});
  if (!report.ok()) {
    return Unreadable(report.status());
  }
  if (arguments.json) {
    PrintJson(DiffJson(*report));
  } else {
    absl::PrintF("%s", DiffText(*report, arguments.tensors));
  }
  return report->equal() ? 0 : 1;
}

}  // namespace dtrain::checkpoint
