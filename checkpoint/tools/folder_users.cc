#include "checkpoint/tools/folder_users.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/numbers.h"

namespace dtrain::checkpoint {
namespace {

namespace fs = std::filesystem;

// Whether a process has the file of `wanted` open. stat through the descriptor's link is right
// whatever the folder is called in that process.
bool HasOpen(const fs::path& process, const struct stat& wanted) {
  std::error_code error;
  for (fs::directory_iterator it(process / "fd", error), end; !error && it != end;
       it.increment(error)) {
    struct stat info {};
    if (stat(it->path().c_str(), &info) == 0 && info.st_dev == wanted.st_dev &&
        info.st_ino == wanted.st_ino) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::vector<FolderUser> UsersOf(const std::string& folder) {
  std::vector<FolderUser> users;
  struct stat wanted {};
  if (stat(folder.c_str(), &wanted) != 0) {
    return users;
  }
  std::error_code error;
  for (fs::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
    FolderUser user;
    if (!absl::SimpleAtoi(it->path().filename().string(), &user.process) ||
        user.process == getpid() || !HasOpen(it->path(), wanted)) {
      continue;
    }
    std::ifstream name(it->path() / "comm");
    std::getline(name, user.program);
    users.push_back(user);
  }
  return users;
}

}  // namespace dtrain::checkpoint
