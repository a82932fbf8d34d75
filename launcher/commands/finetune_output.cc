#include "launcher/commands/finetune_output.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/json.h"

namespace dtrain::launcher {
namespace {

namespace fs = std::filesystem;

constexpr size_t kRecordBytesMax = 1U << 20;

bool HoldsModel(const std::string& folder) { return FileExists(folder + "/config.json"); }

// Names, sizes and times of the folder's files, with its whole path: another model in its place, or
// an edited file, gives another text.
std::string Describe(const std::string& folder) {
  std::error_code ignored;
  std::vector<fs::path> paths;
  for (fs::directory_iterator it(folder, ignored), end; !ignored && it != end;
       it.increment(ignored)) {
    paths.push_back(it->path());
  }
  std::sort(paths.begin(), paths.end());
  Json files = Json::array();
  for (const fs::path& path : paths) {
    std::error_code missing;
    const uintmax_t bytes = fs::file_size(path, missing);
    const auto changed = fs::last_write_time(path, missing);
    files.push_back({path.filename().string(), missing ? 0 : bytes,
                     missing ? 0 : changed.time_since_epoch().count()});
  }
  const Json record = {{"folder", fs::weakly_canonical(folder, ignored).string()},
                       {"files", std::move(files)}};
  return DumpJson(record, 2) + "\n";
}

}  // namespace

absl::Status CheckOutput(const FinetuneOutput& output) {
  std::error_code unknown;
  if (fs::equivalent(output.model_folder, output.folder, unknown)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--out %s is the model's own folder, which is not overwritten; name another",
        output.folder));
  }
  const bool is_free =
      !fs::exists(output.folder, unknown) ||
      (fs::is_directory(output.folder, unknown) && fs::is_empty(output.folder, unknown));
  if (is_free) {
    return absl::OkStatus();
  }
  if (!HoldsModel(output.folder)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "--out %s is there and is no model folder; it is left alone: name another, or remove it",
        output.folder));
  }
  if (output.overwrite ||
      ReadFile(output.record, kRecordBytesMax).value_or("") == Describe(output.folder)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "--out %s holds a model that this run has not written, or that was changed since; it is left "
      "alone: name another folder, or give --overwrite to replace it",
      output.folder));
}

absl::Status RecordOutput(const FinetuneOutput& output) {
  return HoldsModel(output.folder) ? WriteFileAtomic(output.record, Describe(output.folder))
                                   : absl::OkStatus();
}

}  // namespace dtrain::launcher
