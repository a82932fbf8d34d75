#include "launcher/hosts/exports.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/status.h"

namespace dtrain::launcher {
namespace {

constexpr std::array kPrefixes = {"NCCL_", "DTRAIN_", "OMP_", "UCX_"};
// A launcher sets these for one rank on one host.
constexpr std::array kOfOneRank = {
    env::kRunId,   env::kRunDir,     env::kAttempt,     env::kStore,
    env::kTokenFd, env::kTokenFile,  env::kAgentSocket, env::kHost,
    env::kNodeId,  env::kRdmaDevice, env::kReuse,       env::kBeginsJob,
};
constexpr size_t kFileBytesMax = 1U << 20;

bool IsForwarded(const std::string& name) {
  return std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [&](const char* prefix) { return absl::StartsWith(name, prefix); }) &&
         std::none_of(kOfOneRank.begin(), kOfOneRank.end(),
                      [&](const char* own) { return name == own; });
}

bool IsVariableName(absl::string_view name) {
  return !name.empty() && !absl::ascii_isdigit(static_cast<unsigned char>(name.front())) &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_';
         });
}

// Sets the variable of "NAME=VALUE". `where` begins the message of an error.
absl::Status SetVariable(absl::string_view where, absl::string_view text, Environment& variables) {
  const size_t equals = text.find('=');
  if (equals == absl::string_view::npos || !IsVariableName(text.substr(0, equals))) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s has \"%s\"; allowed: NAME=VALUE, where NAME has letters, digits and _",
                        where, absl::CHexEscape(text.substr(0, equals))));
  }
  if (text.find('\0') != absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: the value of %s has a zero byte", where, text.substr(0, equals)));
  }
  variables[std::string(text.substr(0, equals))] = std::string(text.substr(equals + 1));
  return absl::OkStatus();
}

absl::Status SetFromFile(absl::string_view content, Environment& variables) {
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(content, '\n')) {
    ++number;
    const absl::string_view text = absl::StripAsciiWhitespace(line);
    if (!text.empty() && text.front() != '#') {
      DT_RETURN_IF_ERROR(
          SetVariable(absl::StrCat("line ", number, " of .deepspeed_env"), text, variables));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Environment> ExportedEnvironment(const Environment& environment,
                                                const std::vector<std::string>& files,
                                                const std::vector<std::string>& exports) {
  Environment variables;
  for (const auto& [name, value] : environment) {
    if (IsForwarded(name)) {
      variables[name] = value;
    }
  }
  for (const std::string& file : files) {
    DT_RETURN_IF_ERROR(SetFromFile(file, variables));
  }
  for (const std::string& text : exports) {
    if (absl::StrContains(text, '=') || !IsVariableName(text)) {
      DT_RETURN_IF_ERROR(SetVariable("--export", text, variables));
      continue;
    }
    const auto found = environment.find(text);
    if (found == environment.end()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--export %s: this variable is not set here; set it, or give --export %s=VALUE", text,
          text));
    }
    variables[text] = found->second;
  }
  return variables;
}

absl::StatusOr<std::vector<std::string>> ReadEnvironmentFiles(const Environment& environment) {
  const auto given = environment.find("DS_ENV_FILE");
  const auto home = environment.find("HOME");
  const std::filesystem::path name =
      given == environment.end() || given->second.empty() ? ".deepspeed_env" : given->second;
  std::vector<std::filesystem::path> paths;
  if (home != environment.end() && !name.is_absolute()) {
    paths.push_back(std::filesystem::path(home->second) / name);
  }
  paths.push_back(name);
  std::vector<std::string> contents;
  for (const std::filesystem::path& path : paths) {
    std::error_code ignored;
    if (std::filesystem::is_regular_file(path, ignored)) {
      DT_ASSIGN_OR_RETURN(contents.emplace_back(), ReadFile(path.string(), kFileBytesMax));
    }
  }
  return contents;
}

std::string Shown(absl::string_view name, absl::string_view value) {
  constexpr std::array kSecret = {"secret",  "token",      "passw",        "apikey",
                                  "api_key", "credential", "authorization"};
  const std::string lower = absl::AsciiStrToLower(name);
  const bool is_secret = std::any_of(kSecret.begin(), kSecret.end(), [&](const char* word) {
    return absl::StrContains(lower, word);
  });
  return is_secret ? "(hidden)" : std::string(value);
}

}  // namespace dtrain::launcher
