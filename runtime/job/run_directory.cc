#include "runtime/job/run_directory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/numeric/prng.h"
#include "base/status.h"
#include "base/system/move_aside.h"
#include "runtime/plan/config/accepted_changes.h"

namespace dtrain {
namespace {

std::string RandomRunId() {
  const auto seed =
      static_cast<uint64_t>(absl::GetCurrentTimeNanos()) ^ (static_cast<uint64_t>(getpid()) << 32);
  return absl::StrFormat("%012x", MixBits(seed) >> 16);
}

// Whether a file of records has one of a step. The first of a run are at its begin, and the file of
// a long run is large.
bool HasStepRecord(const std::string& path) {
  constexpr absl::string_view kMark = R"("kind":"step")";
  constexpr size_t kBlockBytes = size_t{64} << 10;
  const auto file = OpenFile(path, O_RDONLY);
  std::string text;  // The last bytes read, which may have a part of the mark at their end.
  while (file.ok()) {
    text.erase(0, text.size() - std::min(text.size(), kMark.size() - 1));
    const size_t kept = text.size();
    text.resize(kept + kBlockBytes);
    const ssize_t bytes = read(file->get(), text.data() + kept, kBlockBytes);
    text.resize(kept + static_cast<size_t>(std::max<ssize_t>(bytes, 0)));
    if (absl::StrContains(text, kMark)) {
      return true;
    }
    if (bytes == 0 || (bytes < 0 && errno != EINTR)) {
      return false;
    }
  }
  return false;
}

// Whether the run took a step. One that died of a wrong path before the first has nothing to lose
// and must not stand in the way of the corrected command.
bool HoldsSteps(const std::string& path) {
  return FileExists(absl::StrCat(path, "/checkpoints/latest")) ||
         HasStepRecord(absl::StrCat(path, "/metrics/rank-0.jsonl"));
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

// run.json, or an empty object.
Json ExistingRecord(const std::string& path) {
  const auto text = ReadFile(absl::StrCat(path, "/run.json"), 1U << 20);
  const auto json = text.ok() ? ParseJson(*text, "run.json") : text.status();
  return json.ok() && json->is_object() ? *json : Json::object();
}

// Another schedule differs in several keys, which the name of the section accepts together.
std::vector<std::string> WholeSchedule(std::vector<std::string> keys) {
  const auto is_schedule = [](const std::string& key) {
    return absl::StartsWith(key, "scheduler.");
  };
  if (std::count_if(keys.begin(), keys.end(), is_schedule) > 1) {
    keys.erase(std::remove_if(keys.begin(), keys.end(), is_schedule), keys.end());
    keys.emplace_back("scheduler");
  }
  return keys;
}

// Adds what differs from the saved values to directory.accepted_changes, or says which key is in
// the way.
absl::Status AcceptChanges(const RunDirectoryOptions& options, const Config& config,
                           const Json& saved, RunDirectory& directory) {
  std::string refused;            // The first difference that is not accepted.
  std::string why;                // It cannot be.
  std::vector<std::string> keys;  // These would have to be accepted.
  bool is_acceptable = true;
  for (const ConfigDifference& difference : config.IdentityDifferences(saved)) {
    if (plan::IsAccepted(difference, options.accept_changes)) {
      directory.accepted_changes.push_back(
          {{"key", difference.key},
           {"was", difference.was},
           {"now", difference.now},
           {"attempt", options.attempt},
           {"time", absl::FormatTime(absl::Now(), absl::UTCTimeZone())}});
      directory.accepted_now.push_back(difference.text);
      continue;
    }
    const bool may_be = plan::IsAcceptable(difference);
    if (refused.empty() || (is_acceptable && !may_be)) {
      refused = difference.text;
      why = may_be ? "" : plan::WhyKept(difference.key);
    }
    is_acceptable = is_acceptable && may_be;
    keys.push_back(difference.key);
  }
  if (refused.empty()) {
    return absl::OkStatus();
  }
  const std::string how = absl::StrJoin(WholeSchedule(std::move(keys)), " --accept-change ");
  return absl::FailedPreconditionError(absl::StrFormat(
      "run directory %s holds a run of another configuration: %s%schoose another by --run-dir "
      "DIR, or --fresh moves the old run aside",
      options.path, refused,
      is_acceptable
          ? absl::StrCat("; accept it by --accept-change ", how, ", ")
          : absl::StrCat(", which a resumed run must keep, because ", why, "; set it back, ")));
}

// Changes are recorded before config.json makes them the values to compare with.
absl::Status WriteRecords(const std::string& path, const Json& run, const Config& config) {
  DT_RETURN_IF_ERROR(WriteFileAtomic(absl::StrCat(path, "/run.json"), DumpJson(run, 2) + "\n"));
  return WriteFileAtomic(absl::StrCat(path, "/config.json"),
                         DumpJson(config.values_in_force(), 2) + "\n");
}

}  // namespace

absl::StatusOr<RunDirectory> PrepareRunDirectory(const RunDirectoryOptions& options,
                                                 const Config& config) {
  const std::string& path = options.path;
  for (const std::string& key : options.accept_changes) {
    DT_RETURN_IF_ERROR(plan::CheckAcceptable(key));
  }
  if (options.fresh) {
    DT_RETURN_IF_ERROR(
        MoveRunAside(path, options.has_agent ? Leave::kAgentFiles : Leave::kNothing));
  }
  DT_RETURN_IF_ERROR(Annotate(MakeDirectories(path), "run directory"));
  if (access(path.c_str(), W_OK) != 0) {
    return absl::PermissionDeniedError(
        absl::StrFormat("run directory %s is not writable; choose another by --run-dir DIR", path));
  }
  if (options.fresh) {
    DT_RETURN_IF_ERROR(NoteFreshStart(path));
  }
  DT_ASSIGN_OR_RETURN(const std::optional<Json> existing, ReadExisting(path));
  RunDirectory directory;
  directory.path = path;
  directory.begins_anew =
      options.fresh || (options.is_fresh_job && IsFreshStartDue(path) && !HoldsSteps(path));
  directory.run_id = options.run_id;
  directory.resumed = existing.has_value();
  if (existing.has_value()) {
    const Json record = ExistingRecord(path);
    if (const auto before = record.find("accepted_changes");
        before != record.end() && before->is_array()) {
      directory.accepted_changes = *before;
    }
    DT_RETURN_IF_ERROR(AcceptChanges(options, config, *existing, directory));
    const Json steps = existing->value("train_steps", Json());
    directory.saved_steps = steps.is_number_integer() ? steps.get<int64_t>() : 0;
    const auto id = record.find("id");
    directory.run_id = id != record.end() && id->is_string() ? id->get<std::string>() : "";
  }
  if (directory.run_id.empty()) {
    directory.run_id = options.run_id.empty() ? RandomRunId() : options.run_id;
  }
  Json run = {{"id", directory.run_id},
              {"attempt", options.attempt},
              {"world_size", options.world_size},
              {"folder", WorkingDirectory()},  // Relative paths in config.json begin there.
              {"started", absl::FormatTime(absl::Now(), absl::UTCTimeZone())},
              {"versions", options.versions},
              {"hyperparameters", config.hyperparameters()}};
  if (!directory.accepted_changes.empty()) {
    run["accepted_changes"] = directory.accepted_changes;
  }
  DT_RETURN_IF_ERROR(WriteRecords(path, run, config));
  return directory;
}

absl::Status RecordConfiguration(const std::string& path, const Config& config) {
  Json run = ExistingRecord(path);
  run["hyperparameters"] = config.hyperparameters();
  return WriteRecords(path, run, config);
}

}  // namespace dtrain
