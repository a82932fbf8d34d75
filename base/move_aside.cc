#include "base/move_aside.h"

#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"

namespace dtrain {

absl::Status MoveRunAside(const std::string& path) {
  if (!FileExists(absl::StrCat(path, "/config.json"))) {
    return absl::OkStatus();
  }
  for (int n = 1; n < 10000; ++n) {
    const std::string target = absl::StrCat(path, ".old-", n);
    if (FileExists(target)) {
      continue;
    }
    if (rename(path.c_str(), target.c_str()) != 0) {
      return ErrnoStatus(errno, absl::StrCat("cannot move ", path, " aside to ", target));
    }
    DT_LOG(Info) << "--fresh has moved the old run from " << path << " to " << target;
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("10,000 old runs stand beside ", path, "; remove some"));
}

}  // namespace dtrain
