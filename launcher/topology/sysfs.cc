#include "launcher/topology/sysfs.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/file.h"

namespace dtrain::launcher {

bool IsPciAddress(absl::string_view name) {
  constexpr absl::string_view kForm = "xxxx:xx:xx.x";
  if (name.size() != kForm.size()) {
    return false;
  }
  for (size_t i = 0; i < kForm.size(); ++i) {
    const bool fits = kForm[i] == 'x' ? absl::ascii_isxdigit(static_cast<unsigned char>(name[i]))
                                      : name[i] == kForm[i];
    if (!fits) {
      return false;
    }
  }
  return true;
}

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

absl::StatusOr<std::vector<int>> ParseCpuList(absl::string_view text) {
  constexpr int kCpuMax = 65535;
  std::vector<int> cpus;
  for (const absl::string_view range : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::vector<absl::string_view> ends = absl::StrSplit(range, '-');
    int first = 0;
    int last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last) || first < 0 || last < first || last > kCpuMax ||
        cpus.size() > kCpuMax) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "list of CPUs \"%s\"; allowed: numbers from 0 to %d and ranges, such as 0-3,8", text,
          kCpuMax));
    }
    for (int cpu = first; cpu <= last; ++cpu) {
      cpus.push_back(cpu);
    }
  }
  return cpus;
}

}  // namespace dtrain::launcher
