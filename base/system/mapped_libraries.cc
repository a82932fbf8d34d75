#include "base/system/mapped_libraries.h"

#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"

namespace dtrain {

std::vector<std::string> LibrariesInMaps(absl::string_view maps) {
  std::set<std::string> found;
  for (const absl::string_view line : absl::StrSplit(maps, '\n', absl::SkipEmpty())) {
    const size_t path = line.find('/');  // The columns before it hold no slash.
    if (path != absl::string_view::npos && absl::StrContains(line.substr(path), ".so")) {
      found.emplace(line.substr(path));
    }
  }
  return {found.begin(), found.end()};
}

absl::StatusOr<std::vector<std::string>> MappedLibraries() {
  std::ifstream file("/proc/self/maps");
  std::stringstream text;
  text << file.rdbuf();
  if (!file) {
    return absl::UnavailableError("/proc/self/maps cannot be read: is /proc mounted?");
  }
  return LibrariesInMaps(text.str());
}

}  // namespace dtrain
