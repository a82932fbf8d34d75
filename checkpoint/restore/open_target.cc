#include "checkpoint/restore/open_target.h"

#include <sys/stat.h>

#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "checkpoint/restore/verify.h"
#include "checkpoint/storage/posix_storage.h"
#include "checkpoint/storage/s3/s3_storage.h"

namespace dtrain::checkpoint {
namespace {

constexpr size_t kConfigBytesMax = 64U << 20;

bool IsFolder(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

// The object in `path`; an empty one when the file is not there or holds something else.
Json ReadObject(const std::string& path) {
  const auto text = ReadFile(path, kConfigBytesMax);
  auto json = text.ok() ? ParseJson(*text, path) : text.status();
  return json.ok() && json->is_object() ? *std::move(json) : Json::object();
}

std::string TextAt(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// The folder of the run's checkpoints by its records: `dir` is checkpoint.dir, and the run may have
// been started in another folder than this program.
std::string WrittenTo(const std::string& run_dir, const std::string& dir) {
  const std::string started_in = TextAt(ReadObject(absl::StrCat(run_dir, "/run.json")), "folder");
  return (std::filesystem::path(started_in) / dir).lexically_normal();
}

// The folder of checkpoints of the run directory `directory`, or `directory` itself if it is no run
// directory.
absl::StatusOr<std::string> CheckpointsFolder(const std::string& directory) {
  if (IsFolder(absl::StrCat(directory, "/epochs"))) {
    return directory;  // The folder itself holds checkpoints.
  }
  const Json config = ReadObject(absl::StrCat(directory, "/config.json"));
  const auto section = config.find("checkpoint");
  const std::string dir =
      section != config.end() && section->is_object() ? TextAt(*section, "dir") : "";
  const std::string configured = dir.empty() ? "" : WrittenTo(directory, dir);
  if (!configured.empty() && IsFolder(configured)) {
    return configured;
  }
  const std::string usual = absl::StrCat(directory, "/checkpoints");
  if (IsFolder(usual)) {
    return usual;
  }
  if (!configured.empty()) {
    return absl::NotFoundError(absl::StrFormat(
        "%s keeps its checkpoints in %s (checkpoint.dir is \"%s\"), but there is no such folder: "
        "the run has saved none yet, or the folder was moved; if it was moved, give its path "
        "instead of %s",
        directory, configured, dir, directory));
  }
  return directory;
}

// "s3://bucket/prefix", or a checkpoint's folder in it.
absl::StatusOr<Target> OpenS3Target(std::string url) {
  Target target;
  const size_t slash = url.rfind('/');
  target.id = StepId::FromDirectoryName(url.substr(slash + 1));
  if (target.id) {
    url.resize(slash);
  }
  DT_ASSIGN_OR_RETURN(target.storage, OpenS3Storage(url, S3Options()));
  return target;
}

}  // namespace

absl::StatusOr<std::string> PlaceOf(std::string path) {
  while (path.size() > 1 && path.back() == '/' && !absl::EndsWith(path, "://")) {
    path.pop_back();
  }
  if (path.empty()) {
    return absl::InvalidArgumentError("a path is empty; give a folder, as runs/gpt");
  }
  if (absl::StrContains(path, "://") && !IsS3Url(path)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is no path; allowed: a folder, or s3://bucket/prefix"));
  }
  return path;
}

absl::StatusOr<std::string> LocalPlaceOf(std::string path) {
  DT_ASSIGN_OR_RETURN(path, PlaceOf(std::move(path)));
  if (IsS3Url(path)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path,
                     " is in an object store; give a path of this machine. Checkpoints are "
                     "copied to and from object stores by dtrain checkpoint copy"));
  }
  return path;
}

absl::StatusOr<Target> OpenTarget(std::string directory) {
  DT_ASSIGN_OR_RETURN(directory, PlaceOf(std::move(directory)));
  if (IsS3Url(directory)) {
    return OpenS3Target(directory);
  }
  if (!IsFolder(directory)) {
    return absl::NotFoundError(
        absl::StrCat(directory, " is not a folder; give a run directory, as runs/gpt"));
  }
  Target target;
  const size_t slash = directory.rfind('/');
  const std::string name = slash == std::string::npos ? directory : directory.substr(slash + 1);
  target.id = StepId::FromDirectoryName(name);
  if (target.id) {
    directory = slash == std::string::npos ? "." : slash == 0 ? "/" : directory.substr(0, slash);
  } else {
    DT_ASSIGN_OR_RETURN(directory, CheckpointsFolder(directory));
  }
  DT_ASSIGN_OR_RETURN(target.storage, OpenPosixStorage(directory));
  return target;
}

absl::StatusOr<std::vector<StepId>> CheckpointsOf(const Target& target) {
  if (target.id) {
    return std::vector<StepId>{*target.id};
  }
  DT_ASSIGN_OR_RETURN(std::vector<StepId> ids, ListCheckpoints(*target.storage));
  if (ids.empty()) {
    return absl::NotFoundError(absl::StrCat(
        target.storage->DisplayName(""),
        " holds no finished checkpoint; a run saves one every checkpoint.interval steps"));
  }
  return ids;
}

absl::StatusOr<StepId> ChooseOne(const Target& target, const std::string& name) {
  if (name.empty()) {
    DT_ASSIGN_OR_RETURN(const std::vector<StepId> ids, CheckpointsOf(target));
    return ids.front();
  }
  const std::optional<StepId> named = StepId::FromDirectoryName(name);
  if (!named) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--name is \"", name, "\"; want a checkpoint's folder name, as step-000000001200.e1"));
  }
  return *named;
}

}  // namespace dtrain::checkpoint
