#include "base/dl/plugin_folders.h"

#include "base/system/own_program.h"

namespace dtrain {

std::vector<std::string> PluginFolders(const std::string& named, const std::string& program) {
  if (!named.empty()) {
    return {named};
  }
  const size_t slash = program.rfind('/');
  if (slash == std::string::npos) {
    return {};
  }
  const std::string folder = program.substr(0, slash);
  return {folder, folder + "/../lib", folder + "/.."};
}

std::vector<std::string> PluginFolders(const std::string& named) {
  return PluginFolders(named, OwnProgram());
}

}  // namespace dtrain
