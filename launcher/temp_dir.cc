#include "launcher/temp_dir.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace dtrain::launcher {

absl::StatusOr<TempDir> TempDir::Create(const std::string& parent) {
  std::string path = absl::StrCat(parent.empty() ? "/tmp" : parent, "/dtrain-XXXXXX");
  if (mkdtemp(path.data()) == nullptr) {
    return Annotate(ErrnoStatus(errno, absl::StrCat("cannot create a folder ", path)),
                    "the agent's socket needs a private folder (set TMPDIR to a writable one)");
  }
  return TempDir(path);
}

TempDir::~TempDir() {
  if (!path_.empty()) {
    RemoveTempDir(path_);
  }
}

void RemoveTempDir(const std::string& path) {
  std::error_code ignored;  // A file that another process removed first is no error.
  for (const auto& entry : std::filesystem::directory_iterator(path, ignored)) {
    unlink(entry.path().c_str());
  }
  rmdir(path.c_str());
}

}  // namespace dtrain::launcher
