#include "launcher/commands/quick_start.h"

#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"

namespace dtrain::launcher {
namespace {

namespace fs = std::filesystem;

// Whether at least `bytes_min` of headers are below `folder`. Stops looking when they are.
bool HoldsHeaders(const std::string& folder, int64_t bytes_min) {
  static const std::set<std::string> kExtensions = {".h", ".hpp", ".hh", ".hxx"};
  std::error_code error;
  int64_t bytes = 0;
  auto walk = fs::recursive_directory_iterator(
      folder, fs::directory_options::skip_permission_denied, error);
  for (; !error && walk != fs::recursive_directory_iterator(); walk.increment(error)) {
    std::error_code unread;
    if (kExtensions.count(walk->path().extension().string()) > 0 && walk->is_regular_file(unread)) {
      const uintmax_t size = walk->file_size(unread);
      bytes += unread ? 0 : static_cast<int64_t>(size);
      if (bytes >= bytes_min) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

absl::StatusOr<std::string> DefaultConfig(const std::string& prefix) {
  const std::string path = absl::StrCat(prefix, "/share/dtrain/configs/gpt.json");
  if (!FileExists(path)) {
    return absl::NotFoundError(absl::StrFormat(
        "the default configuration %s is missing; install dtrain again, or start your own: dtrain "
        "launch --nproc-per-node 2 -- dtrain-gpt config.json",
        path));
  }
  return path;
}

std::vector<std::string> CorpusFolders(const std::string& system, const std::string& prefix,
                                       const std::string& torch, int64_t bytes_min) {
  if (HoldsHeaders(system, bytes_min)) {
    return {system};
  }
  std::vector<std::string> folders;
  for (const std::string& root : {prefix, torch}) {
    const std::string folder = absl::StrCat(root, "/include");
    std::error_code error;
    const bool same = fs::equivalent(folder, system, error);
    if (!root.empty() && !same && HoldsHeaders(folder, 1)) {
      folders.push_back(folder);
    }
  }
  if (HoldsHeaders(system, 1)) {
    folders.insert(folders.begin(), system);
  }
  return folders;
}

bool NamesData(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    if (absl::StrContains(argument, "data.train=")) {
      return true;
    }
  }
  return false;
}

}  // namespace dtrain::launcher
