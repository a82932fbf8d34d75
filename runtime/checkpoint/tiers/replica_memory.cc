#include "runtime/checkpoint/tiers/replica_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/console/progress_line.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "base/system/available_memory.h"
#include "checkpoint/storage/posix_storage.h"

namespace dtrain {
namespace {

constexpr char kReplicaPrefix[] = "dtrain-replicas-";
constexpr mode_t kOwnerOnly = 0700;

uint64_t BytesBelow(checkpoint::Storage& storage, const std::string& path) {
  uint64_t bytes = 0;
  const auto entries = storage.List(path);
  for (size_t i = 0; entries.ok() && i < entries->size(); ++i) {
    const checkpoint::Storage::Entry& entry = (*entries)[i];
    bytes += entry.is_directory
                 ? BytesBelow(storage, absl::StrCat(path, path.empty() ? "" : "/", entry.name))
                 : entry.bytes;
  }
  return bytes;
}

bool IsInMemory(const std::string& folder) {
  struct statfs about {};
  return statfs(folder.c_str(), &about) == 0 &&
         (about.f_type == TMPFS_MAGIC || about.f_type == RAMFS_MAGIC);
}

// Opens the folder and makes sure that it is this user's own, which in /dev/shm anybody might have
// made.
absl::StatusOr<UniqueFd> OpenOwnFolder(const std::string& folder) {
  if (mkdir(folder.c_str(), kOwnerOnly) != 0 && errno != EEXIST) {
    return ErrnoStatus(errno, folder);
  }
  UniqueFd opened(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (opened.get() < 0) {
    return ErrnoStatus(errno, folder);
  }
  struct stat about {};
  if (fstat(opened.get(), &about) != 0) {
    return ErrnoStatus(errno, folder);
  }
  if (about.st_uid != geteuid() || (about.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(absl::StrFormat(
        "%s belongs to user %d and has mode %o; replicas need a folder of user %d with mode 700: "
        "remove it, or set checkpoint.replica_dir to another one",
        folder, about.st_uid, about.st_mode & 07777, geteuid()));
  }
  return opened;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ReplicaMemory>> ReplicaMemory::Open(const std::string& directory,
                                                                   const std::string& run_id) {
  DT_RETURN_IF_ERROR(Annotate(MakeDirectories(directory), "checkpoint.replica_dir"));
  const std::string folder =
      absl::StrCat(directory, "/", kReplicaPrefix, absl::StrReplaceAll(run_id, {{"/", "_"}}));
  DT_ASSIGN_OR_RETURN(UniqueFd lock, OpenOwnFolder(folder));
  flock(lock.get(), LOCK_SH | LOCK_NB);  // Without it a run of another day may remove the folder.
  DT_ASSIGN_OR_RETURN(auto storage, checkpoint::OpenPosixStorage(folder));
  return std::unique_ptr<ReplicaMemory>(
      new ReplicaMemory(folder, std::move(storage), std::move(lock)));
}

uint64_t ReplicaMemory::RoomBytes() {
  const uint64_t here = BytesBelow(*storage_, "");
  uint64_t free = storage_->FreeBytes().value_or(0);
  if (IsInMemory(folder_)) {
    free =
        std::min(free, static_cast<uint64_t>(std::max<int64_t>(0, ReadAvailableMemory().bytes())));
  }
  return here + free;
}

absl::Status ReplicaMemory::Remove() {
  std::error_code error;
  std::filesystem::remove_all(folder_, error);
  return error ? ErrnoStatus(error.value(), folder_) : absl::OkStatus();
}

void RemoveStaleReplicas(const std::string& directory, const std::string& own_folder,
                         absl::Duration age) {
  const time_t oldest = time(nullptr) - static_cast<time_t>(absl::ToInt64Seconds(age));
  std::error_code error;
  std::vector<std::string> stale;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error)) {
    const std::string path = at->path().string();
    if (!absl::StartsWith(at->path().filename().string(), kReplicaPrefix) || path == own_folder) {
      continue;
    }
    const UniqueFd folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat about {};
    // Each save makes a folder in it, by which its time of change moves on.
    if (folder.get() >= 0 && fstat(folder.get(), &about) == 0 && about.st_uid == geteuid() &&
        about.st_mtime < oldest && flock(folder.get(), LOCK_EX | LOCK_NB) == 0) {
      stale.push_back(path);
    }
  }
  for (const std::string& path : stale) {
    std::filesystem::remove_all(path, error);
    DT_LOG(Info) << "removed " << path << ", replicas of a run that ended without removing them";
  }
}

absl::Status CheckReplicaRoom(const ReplicaRoom& room) {
  const auto amount = [](uint64_t bytes) {
    return absl::StrFormat("%s (%d bytes)", FormatBytes(static_cast<double>(bytes)), bytes);
  };
  const uint64_t needed = 2 * room.snapshot_bytes;
  const uint64_t free = room.room_bytes - std::min(room.room_bytes, room.staging_bytes);
  if (room.allowed_bytes > 0 && room.allowed_bytes < needed) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "checkpoint.replicas keeps up to two snapshots of another host in memory, %s in %s, but "
        "checkpoint.replica_memory allows %s: raise it, or set checkpoint.replicas to 0",
        amount(needed), room.folder, amount(room.allowed_bytes)));
  }
  if (free < needed) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "checkpoint.replicas keeps up to two snapshots of another host in memory, %s in %s, where "
        "%s are free%s: set checkpoint.replica_dir to a tmpfs with more room, train on more hosts, "
        "or set checkpoint.replicas to 0",
        amount(needed), room.folder, amount(free),
        room.staging_bytes > 0 ? absl::StrCat(" beside the ", amount(room.staging_bytes),
                                              " that checkpoint.staging_memory takes")
                               : std::string()));
  }
  return absl::OkStatus();
}

uint64_t JournalRoomBytes(const ReplicaRoom& room) {
  const uint64_t snapshots = 2 * room.snapshot_bytes;
  const uint64_t taken = snapshots + room.staging_bytes;
  const uint64_t free = room.room_bytes - std::min(room.room_bytes, taken);
  if (room.allowed_bytes == 0) {
    return free / 2;  // Training needs memory too.
  }
  return std::min(free, room.allowed_bytes - std::min(room.allowed_bytes, snapshots));
}

}  // namespace dtrain
