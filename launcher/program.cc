#include "launcher/program.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace dtrain::launcher {
namespace {

enum class Found { kNothing, kNotExecutable, kExecutable };

Found Inspect(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    return Found::kNothing;
  }
  return S_ISREG(info.st_mode) && access(path.c_str(), X_OK) == 0 ? Found::kExecutable
                                                                  : Found::kNotExecutable;
}

absl::Status NotExecutable(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("program ", path, " is a directory; name the program in it"));
  }
  return absl::PermissionDeniedError(
      absl::StrFormat("program %s is not executable (mode %04o); try: chmod +x %s", path,
                      static_cast<unsigned>(info.st_mode & 07777), path));
}

}  // namespace

absl::StatusOr<std::string> FindProgram(const std::string& name, absl::string_view path_variable) {
  if (name.empty()) {
    return absl::InvalidArgumentError("the program's name is empty");
  }
  if (absl::StrContains(name, '/')) {
    switch (Inspect(name)) {
      case Found::kExecutable:
        return name;
      case Found::kNotExecutable:
        return NotExecutable(name);
      case Found::kNothing:
        return absl::NotFoundError(
            absl::StrFormat("program %s not found (working directory: %s)", name, [] {
              char buffer[4096];
              return std::string(getcwd(buffer, sizeof(buffer)) != nullptr ? buffer : "?");
            }()));
    }
  }
  std::string blocked;
  for (const absl::string_view folder : absl::StrSplit(path_variable, ':', absl::SkipEmpty())) {
    const std::string path = absl::StrCat(folder, "/", name);
    const Found found = Inspect(path);
    if (found == Found::kExecutable) {
      return path;
    }
    if (found == Found::kNotExecutable && blocked.empty()) {
      blocked = path;
    }
  }
  if (!blocked.empty()) {
    return NotExecutable(blocked);
  }
  const bool is_here = Inspect(absl::StrCat("./", name)) == Found::kExecutable;
  return absl::NotFoundError(absl::StrFormat(
      "program %s not found in PATH (%s)%s", name, path_variable,
      is_here ? absl::StrFormat("; there is one in this folder: write ./%s", name) : ""));
}

std::string RunDirInArguments(const std::vector<std::string>& arguments) {
  std::string run_dir;
  for (size_t i = 0; i < arguments.size(); ++i) {
    absl::string_view value = arguments[i];
    if (value == "--") {
      break;
    }
    if (!absl::ConsumePrefix(&value, "--run-dir") && !absl::ConsumePrefix(&value, "--run_dir")) {
      continue;
    }
    if (absl::ConsumePrefix(&value, "=")) {
      run_dir = std::string(value);
    } else if (value.empty() && i + 1 < arguments.size()) {
      run_dir = arguments[++i];
    }
  }
  return run_dir;
}

std::string BaseName(absl::string_view path) {
  const size_t slash = path.rfind('/');
  return std::string(slash == absl::string_view::npos ? path : path.substr(slash + 1));
}

}  // namespace dtrain::launcher
