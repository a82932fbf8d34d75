#include "runtime/job/run_directory.h"

#include <unistd.h>

#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/move_aside.h"
#include "base/prng.h"
#include "base/status.h"

namespace dtrain {
namespace {

std::string RandomRunId() {
  const auto seed =
      static_cast<uint64_t>(absl::GetCurrentTimeNanos()) ^ (static_cast<uint64_t>(getpid()) << 32);
  return absl::StrFormat("%012x", MixBits(seed) >> 16);
}

// Whether the run took a step. One that died of a wrong path before the first has nothing to lose
// and must not stand in the way of the corrected command.
bool HoldsSteps(const std::string& path) {
  constexpr size_t kMetricsBytesMax = size_t{1} << 30;
  const auto metrics = ReadFile(absl::StrCat(path, "/metrics/rank-0.jsonl"), kMetricsBytesMax);
  return FileExists(absl::StrCat(path, "/checkpoints/latest")) ||
         absl::IsResourceExhausted(metrics.status()) ||
         (metrics.ok() && absl::StrContains(*metrics, R"("kind":"step")"));
}

// The run that `path` holds: its config.json, or nothing.
absl::StatusOr<std::optional<Json>> ReadExisting(const std::string& path) {
  const std::string file = absl::StrCat(path, "/config.json");
  if (!FileExists(file) || !HoldsSteps(path)) {
    return std::optional<Json>();
  }
  DT_ASSIGN_OR_RETURN(const std::string text, ReadFile(file, 64U << 20));
  DT_ASSIGN_OR_RETURN(Json json, ParseJson(text, file));
  return std::optional<Json>(std::move(json));
}

std::string ExistingRunId(const std::string& path) {
  const auto text = ReadFile(absl::StrCat(path, "/run.json"), 1U << 20);
  if (!text.ok()) {
    return "";
  }
  const auto json = ParseJson(*text, "run.json");
  return json.ok() && json->is_object() && json->contains("id") && (*json)["id"].is_string()
             ? (*json)["id"].get<std::string>()
             : "";
}

}  // namespace

absl::StatusOr<RunDirectory> PrepareRunDirectory(const RunDirectoryOptions& options,
                                                 const Config& config) {
  const std::string& path = options.path;
  if (options.fresh) {
    DT_RETURN_IF_ERROR(
        MoveRunAside(path, options.has_agent ? Leave::kAgentFiles : Leave::kNothing));
  }
  DT_RETURN_IF_ERROR(Annotate(MakeDirectories(path), "run directory"));
  if (access(path.c_str(), W_OK) != 0) {
    return absl::PermissionDeniedError(
        absl::StrFormat("run directory %s is not writable; choose another by --run-dir DIR", path));
  }
  DT_ASSIGN_OR_RETURN(const std::optional<Json> existing, ReadExisting(path));
  RunDirectory directory{.path = path, .run_id = options.run_id, .resumed = existing.has_value()};
  if (existing.has_value()) {
    if (const auto difference = config.IdentityDifference(*existing)) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "run directory %s holds a run of another configuration: %s; choose another by --run-dir "
          "DIR, or --fresh moves the old run aside",
          path, *difference));
    }
    directory.run_id = ExistingRunId(path);
  }
  if (directory.run_id.empty()) {
    directory.run_id = options.run_id.empty() ? RandomRunId() : options.run_id;
  }
  const Json run = {{"id", directory.run_id},
                    {"attempt", options.attempt},
                    {"world_size", options.world_size},
                    {"folder", WorkingDirectory()},  // What relative paths in config.json mean.
                    {"started", absl::FormatTime(absl::Now(), absl::UTCTimeZone())},
                    {"versions", options.versions},
                    {"hyperparameters", config.hyperparameters()}};
  DT_RETURN_IF_ERROR(WriteFileAtomic(absl::StrCat(path, "/config.json"),
                                     DumpJson(config.values_in_force(), 2) + "\n"));
  DT_RETURN_IF_ERROR(WriteFileAtomic(absl::StrCat(path, "/run.json"), DumpJson(run, 2) + "\n"));
  return directory;
}

}  // namespace dtrain
