// Small reads below a sysfs root. No state; thread-safe. Internal to launcher/topology.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain::launcher {

// The text without its final newline; nullopt when it cannot be read, including EINVAL, which the
// kernel gives for GID entries of another network namespace.
std::optional<std::string> ReadSysfs(const std::string& path);
// The integer in the file, or `fallback`.
int ReadSysfsInt(const std::string& path, int fallback);
// The names in a folder, numbers in numeric order; empty when there is none.
std::vector<std::string> ListSysfs(const std::string& path);
// The PCI address and the bridges above it, from the root down, of the device that the link `path`
// leads to: {"pci0000:00", "0000:00:01.0", "0000:1b:00.0"}. Empty when it is no PCI device.
std::vector<std::string> PciPath(const std::string& path);

// Whether `name` has the form "0000:1b:00.0".
bool IsPciAddress(absl::string_view name);

// "0-3,8" as {0, 1, 2, 3, 8}; "" has none. InvalidArgument: another form, or a CPU above 65,535.
absl::StatusOr<std::vector<int>> ParseCpuList(absl::string_view text);

}  // namespace dtrain::launcher
