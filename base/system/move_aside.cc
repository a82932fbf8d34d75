#include "base/system/move_aside.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"

namespace dtrain {
namespace {

std::string FreshStartNote(const std::string& path) { return absl::StrCat(path, "/fresh-start"); }

absl::Status RenameAside(const std::string& from, const std::string& to) {
  return rename(from.c_str(), to.c_str()) == 0
             ? absl::OkStatus()
             : ErrnoStatus(errno, absl::StrCat("cannot move ", from, " aside to ", to));
}

// Moves everything in `path` except the agent's files to the new folder `target`; config.json goes
// last, so that an interrupted call is repeated.
absl::Status MoveContent(const std::string& path, const std::string& target) {
  constexpr char kLast[] = "config.json";
  DT_RETURN_IF_ERROR(MakeDirectories(target));
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    const std::string name = entry.path().filename();
    const bool is_agents =
        name == "logs" || (absl::StartsWith(name, "events") && absl::EndsWith(name, ".jsonl"));
    if (!is_agents && name != kLast) {
      names.push_back(name);
    }
  }
  names.emplace_back(kLast);
  for (const std::string& name : names) {
    DT_RETURN_IF_ERROR(RenameAside(absl::StrCat(path, "/", name), absl::StrCat(target, "/", name)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MoveRunAside(const std::string& path, Leave leave) {
  if (!FileExists(absl::StrCat(path, "/config.json"))) {
    return absl::OkStatus();
  }
  for (int n = 1; n < 10000; ++n) {
    const std::string target = absl::StrCat(path, ".old-", n);
    if (FileExists(target)) {
      continue;
    }
    DT_RETURN_IF_ERROR(leave == Leave::kNothing ? RenameAside(path, target)
                                                : MoveContent(path, target));
    DT_LOG(Info) << "--fresh has moved the old run from " << path << " to " << target;
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("10,000 old runs stand beside ", path, "; remove some"));
}

absl::Status NoteFreshStart(const std::string& path) {
  return WriteFileAtomic(FreshStartNote(path), "--fresh: no attempt has begun yet\n");
}

bool IsFreshStartDue(const std::string& path) { return FileExists(FreshStartNote(path)); }

absl::Status EndFreshStart(const std::string& path) {
  const std::string note = FreshStartNote(path);
  return unlink(note.c_str()) == 0 || errno == ENOENT
             ? absl::OkStatus()
             : ErrnoStatus(errno, absl::StrCat("cannot remove ", note));
}

}  // namespace dtrain
