// The shared libraries that this process has mapped, from /proc/self/maps. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain {

// The paths of the mapped files whose name has ".so" in it, each once, sorted.
absl::StatusOr<std::vector<std::string>> MappedLibraries();

// The paths among `maps` (the text of a /proc/PID/maps). Pure.
std::vector<std::string> LibrariesInMaps(absl::string_view maps);

}  // namespace dtrain
