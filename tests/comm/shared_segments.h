// Finds the processes on this host that still have a dtrain segment. Segments are memfds: they
// appear in no folder, only among the descriptors and mappings of processes.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

namespace dtrain::comm {

// "PID: LINK" of every descriptor and mapping of a segment whose name begins with `name`, in all
// processes that this one may inspect.
inline std::vector<std::string> HoldersOfSegments(const std::string& name) {
  const std::string wanted = "memfd:dtrain:" + name;
  std::vector<std::string> holders;
  std::error_code gone;  // Processes may end during the inspection.
  for (const auto& process : std::filesystem::directory_iterator("/proc", gone)) {
    const std::string pid = process.path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    std::error_code unreadable;
    for (const auto& fd : std::filesystem::directory_iterator(process.path() / "fd", unreadable)) {
      const std::string link = std::filesystem::read_symlink(fd.path(), unreadable).string();
      if (link.find(wanted) != std::string::npos) {
        holders.push_back(pid + ": " + link);
      }
    }
    std::ifstream maps(process.path() / "maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find(wanted) != std::string::npos) {
        holders.push_back(pid + ": " + line);
      }
    }
  }
  return holders;
}

}  // namespace dtrain::comm
