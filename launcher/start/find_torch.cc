#include "launcher/start/find_torch.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/system/own_program.h"

#ifndef DTRAIN_TORCH_RELEASE
#define DTRAIN_TORCH_RELEASE ""
#endif

namespace dtrain::launcher {
namespace {

namespace fs = std::filesystem;

std::string ReadText(const std::string& path) { return ReadFile(path).value_or(""); }

bool HoldsTorch(const std::string& folder) { return FileExists(folder + "/lib/libtorch_cpu.so"); }

std::string WithoutLinks(const std::string& folder) {
  std::error_code error;
  const fs::path path = fs::canonical(folder, error);
  return error ? folder : path.string();
}

Torch TorchIn(const std::string& folder) {
  return {WithoutLinks(folder),
          TorchReleaseIn(ReadText(folder + "/version.py"), ReadText(folder + "/build-version"))};
}

// torch in PREFIX/lib/python3.X/site-packages and its relatives, in the order of their names.
std::vector<std::string> InSitePackages(const std::string& prefix) {
  std::vector<std::string> folders;
  for (const char* const library : {"lib", "lib64"}) {
    std::error_code ignored;
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(absl::StrCat(prefix, "/", library), ignored)) {
      if (!absl::StartsWith(entry.path().filename().string(), "python3")) {
        continue;
      }
      for (const char* const packages : {"site-packages", "dist-packages"}) {
        const std::string folder = absl::StrCat(entry.path().string(), "/", packages, "/torch");
        if (fs::exists(folder, ignored)) {
          found.push_back(folder);
        }
      }
    }
    std::sort(found.begin(), found.end());
    folders.insert(folders.end(), found.begin(), found.end());
  }
  return folders;
}

// A virtual environment and the prefix of its interpreter, whose packages it can use; "": it
// cannot.
struct VirtualEnvironment {
  std::string system;
};

std::optional<VirtualEnvironment> VirtualEnvironmentIn(const std::string& prefix) {
  const std::string file = prefix + "/pyvenv.cfg";
  if (!FileExists(file)) {
    return std::nullopt;
  }
  std::string home;
  bool uses_system = false;
  const std::string text = ReadText(file);
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    const absl::string_view value = absl::StripAsciiWhitespace(pair.second);
    if (absl::StripAsciiWhitespace(pair.first) == "home") {
      home = std::string(value);
    } else if (absl::StripAsciiWhitespace(pair.first) == "include-system-site-packages") {
      uses_system = value == "true";
    }
  }
  return VirtualEnvironment{uses_system && !home.empty() ? fs::path(home).parent_path().string()
                                                         : ""};
}

std::string Value(const Environment& environment, const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

std::string Advice(const std::string& release) {
  return absl::StrFormat(
      "install torch%s beside dtrain with pip, or set DTRAIN_TORCH to a folder that holds include/ "
      "and lib/libtorch_cpu.so",
      release.empty() ? "" : absl::StrCat("==", release.substr(0, release.find('+'))));
}

absl::Status WrongRelease(const Torch& found, const std::string& release) {
  return absl::FailedPreconditionError(
      absl::StrFormat("LibTorch in %s is release %s, but this dtrain is built with %s: %s",
                      found.folder, found.release, release, Advice(release)));
}

}  // namespace

std::string TorchReleaseIn(absl::string_view version_py, absl::string_view build_version) {
  constexpr absl::string_view kName = "__version__ = '";
  const size_t start = version_py.find(kName);
  if (start == absl::string_view::npos) {
    return std::string(absl::StripAsciiWhitespace(build_version));
  }
  version_py.remove_prefix(start + kName.size());
  return std::string(version_py.substr(0, version_py.find('\'')));
}

bool TorchReleasesAgree(absl::string_view built, absl::string_view found) {
  if (built.empty() || found.empty()) {
    return true;  // Nothing is known that contradicts it.
  }
  const std::vector<absl::string_view> a = absl::StrSplit(built, '.');
  const std::vector<absl::string_view> b = absl::StrSplit(found, '.');
  return a.size() >= 2 && b.size() >= 2 && a[0] == b[0] && a[1] == b[1];
}

std::vector<std::string> TorchCandidates(const std::string& prefix, const std::string& user_base) {
  std::vector<std::string> folders = {prefix + "/lib/dtrain/torch", prefix + "/torch"};
  const auto add_packages_of = [&folders](const std::string& root) {
    const std::vector<std::string> more = InSitePackages(root);
    folders.insert(folders.end(), more.begin(), more.end());
  };
  const auto add_user_and_system = [&](const std::string& system) {
    if (!user_base.empty()) {
      add_packages_of(user_base);
    }
    add_packages_of(system + "/local");  // The folder into which Debian's pip installs.
    add_packages_of(system);
  };
  const std::optional<VirtualEnvironment> environment = VirtualEnvironmentIn(prefix);
  if (!environment.has_value()) {
    // dtrain was installed with pip's --user, or beside a system's Python.
    add_user_and_system(prefix == user_base ? "/usr" : prefix);
    return folders;
  }
  add_packages_of(prefix);
  if (!environment->system.empty()) {
    add_user_and_system(environment->system);
  }
  return folders;
}

absl::StatusOr<Torch> FindTorch(const TorchSearch& search) {
  if (!search.environment.empty()) {
    if (!HoldsTorch(search.environment)) {
      return absl::NotFoundError(absl::StrFormat(
          "LibTorch not found: DTRAIN_TORCH=%s holds no lib/libtorch_cpu.so; set it to a folder "
          "that does, or unset it",
          search.environment));
    }
    const Torch found = TorchIn(search.environment);
    if (!TorchReleasesAgree(search.release, found.release)) {
      return WrongRelease(found, search.release);
    }
    return found;
  }
  const std::vector<std::string> candidates = TorchCandidates(search.prefix, search.user_base);
  std::vector<Torch> others;
  for (const std::string& folder : candidates) {
    if (!HoldsTorch(folder)) {
      continue;
    }
    Torch found = TorchIn(folder);
    if (TorchReleasesAgree(search.release, found.release)) {
      return found;
    }
    others.push_back(std::move(found));
  }
  if (!others.empty()) {
    return WrongRelease(others[0], search.release);
  }
  const bool has_other = !search.user_base.empty() && search.user_base != search.prefix;
  const std::string also = has_other ? absl::StrCat(" and ", search.user_base) : "";
  return absl::NotFoundError(
      absl::StrFormat("LibTorch not found in %s or the site-packages of %s%s: %s", candidates[0],
                      search.prefix, also, Advice(search.release)));
}

std::string UserBaseOf(const Environment& environment) {
  if (!Value(environment, "PYTHONNOUSERSITE").empty()) {
    return "";
  }
  const std::string home = Value(environment, "HOME");
  const std::string named = Value(environment, "PYTHONUSERBASE");
  return !named.empty() ? named : home.empty() ? "" : home + "/.local";
}

TorchSearch OwnTorchSearch(const Environment& environment) {
  return {OwnPrefix(), Value(environment, "DTRAIN_TORCH"), DTRAIN_TORCH_RELEASE,
          UserBaseOf(environment)};
}

}  // namespace dtrain::launcher
