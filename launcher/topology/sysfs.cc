#include "launcher/topology/sysfs.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "base/file.h"

namespace dtrain::launcher {
namespace {

// "0000:1b:00.0".
bool IsPciAddress(const std::string& name) {
  return name.size() == 12 && name[4] == ':' && name[7] == ':' && name[10] == '.';
}

}  // namespace

std::optional<std::string> ReadSysfs(const std::string& path) {
  const auto text = ReadFile(path, 64 << 10);
  if (!text.ok()) {
    return std::nullopt;
  }
  return std::string(absl::StripTrailingAsciiWhitespace(*text));
}

int ReadSysfsInt(const std::string& path, int fallback) {
  const auto text = ReadSysfs(path);
  int value = 0;
  return text.has_value() && absl::SimpleAtoi(*text, &value) ? value : fallback;
}

std::vector<std::string> ListSysfs(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    int x = 0;
    int y = 0;
    if (absl::SimpleAtoi(a, &x) && absl::SimpleAtoi(b, &y)) {
      return x < y;
    }
    return a < b;
  });
  return names;
}

std::vector<std::string> PciPath(const std::string& path) {
  std::error_code error;
  const auto real = std::filesystem::canonical(path, error);
  std::vector<std::string> parts;
  if (error) {
    return parts;
  }
  for (const auto& piece : real) {
    const std::string name = piece.string();
    if ((absl::StartsWith(name, "pci") && name.find(':') != std::string::npos) ||
        IsPciAddress(name)) {
      parts.push_back(name);
    }
  }
  return !parts.empty() && IsPciAddress(parts.back()) ? parts : std::vector<std::string>();
}

}  // namespace dtrain::launcher
