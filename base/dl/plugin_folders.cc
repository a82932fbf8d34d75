#include "base/dl/plugin_folders.h"

#include <unistd.h>

#include <climits>

namespace dtrain {

std::vector<std::string> PluginFolders(const std::string& named, const std::string& program) {
  if (!named.empty()) {
    return {named};
  }
  const std::string folder = program.substr(0, program.rfind('/'));
  return {folder, folder + "/../lib", folder + "/.."};
}

std::vector<std::string> PluginFolders(const std::string& named) {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  return PluginFolders(named, std::string(path, length > 0 ? static_cast<size_t>(length) : 0));
}

}  // namespace dtrain
