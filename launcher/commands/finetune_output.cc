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
// an edited file, gives another value.
Json Describe(const std::string& folder) {
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
  return {{"folder", fs::weakly_canonical(folder, ignored).string()}, {"files", std::move(files)}};
}

// The text under `key` of a JSON file; "": there is none.
std::string TextIn(const std::string& path, const char* key) {
  const absl::StatusOr<std::string> text = ReadFile(path, kRecordBytesMax);
  const absl::StatusOr<Json> json = text.ok() ? ParseJson(*text, path) : text.status();
  const bool is_there = json.ok() && json->is_object() && json->contains(key);
  return is_there && (*json)[key].is_string() ? (*json)[key].get<std::string>() : "";
}

// The mark's entry in what Describe gave; null: there is none.
Json MarkIn(const Json& description) {
  if (description.is_object() && description.contains("files")) {
    for (const Json& file : description["files"]) {
      if (file.is_array() && file.size() == 3 && file[0] == kExportMark) {
        return file;
      }
    }
  }
  return nullptr;
}

// Whether the folder is the run's own export, of which `recorded` knows nothing because the command
// was killed before it wrote it down. The mark is the last file of an export, so that one which is
// newer was changed by somebody else.
bool IsUnrecordedExport(const FinetuneOutput& output, const Json& recorded, const Json& now) {
  const Json mark = MarkIn(now);
  const std::string run = TextIn(output.run_dir + "/run.json", "id");
  if (mark.is_null() || mark == MarkIn(recorded) || run.empty() ||
      TextIn(absl::StrCat(output.folder, "/", kExportMark), "run") != run) {
    return false;
  }
  return std::all_of(now["files"].begin(), now["files"].end(), [&](const Json& file) {
    return file[2].get<int64_t>() <= mark[2].get<int64_t>();
  });
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
  const absl::StatusOr<std::string> text = ReadFile(output.record, kRecordBytesMax);
  const absl::StatusOr<Json> recorded = text.ok() ? ParseJson(*text, output.record) : text.status();
  const Json known = recorded.value_or(Json());
  const Json now = Describe(output.folder);
  if (output.overwrite || known == now || IsUnrecordedExport(output, known, now)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "--out %s holds a model that this run has not written, or that was changed since; it is left "
      "alone: name another folder, or give --overwrite to replace it",
      output.folder));
}

absl::Status RecordOutput(const FinetuneOutput& output) {
  return HoldsModel(output.folder)
             ? WriteFileAtomic(output.record, DumpJson(Describe(output.folder), 2) + "\n")
             : absl::OkStatus();
}

}  // namespace dtrain::launcher
