#include "checkpoint/tools/open_target.h"

#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "checkpoint/posix_storage.h"
#include "checkpoint/verify.h"

namespace dtrain::checkpoint {
namespace {

constexpr size_t kConfigBytesMax = 64U << 20;

bool IsFolder(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

// checkpoint.dir in the configuration of a run directory; "" when that is the default.
std::string ConfiguredFolder(const std::string& run_dir) {
  const std::string path = absl::StrCat(run_dir, "/config.json");
  const auto text = ReadFile(path, kConfigBytesMax);
  const auto config = text.ok() ? ParseJson(*text, path) : text.status();
  if (!config.ok() || !config->is_object()) {
    return "";
  }
  const auto section = config->find("checkpoint");
  if (section == config->end() || !section->is_object()) {
    return "";
  }
  const Json folder = section->value("dir", Json(""));
  return folder.is_string() ? folder.get<std::string>() : "";
}

// The folder of checkpoints of the run directory `directory`; `directory` itself when it is none.
std::string CheckpointsFolder(const std::string& directory) {
  if (IsFolder(absl::StrCat(directory, "/epochs"))) {
    return directory;  // Holds checkpoints by itself.
  }
  const std::string configured = ConfiguredFolder(directory);
  if (!configured.empty() && IsFolder(configured)) {
    return configured;
  }
  const std::string usual = absl::StrCat(directory, "/checkpoints");
  return IsFolder(usual) ? usual : directory;
}

}  // namespace

absl::StatusOr<Target> OpenTarget(std::string directory) {
  while (directory.size() > 1 && directory.back() == '/') {
    directory.pop_back();
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
    directory = CheckpointsFolder(directory);
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
