#include "checkpoint/tools/output_folder.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "checkpoint/commit/nonce.h"
#include "checkpoint/restore/open_target.h"
#include "checkpoint/storage/posix_storage.h"

namespace dtrain::checkpoint {
namespace {

namespace fs = std::filesystem;

absl::Status CheckFree(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::OkStatus()
                           : ErrnoStatus(errno, absl::StrCat("cannot look at ", path));
  }
  std::error_code error;
  const bool is_empty = S_ISDIR(info.st_mode) && fs::is_empty(path, error);
  if (error) {
    return ErrnoStatus(error.value(), absl::StrCat("cannot list ", path));
  }
  return is_empty ? absl::OkStatus()
                  : absl::AlreadyExistsError(
                        absl::StrCat(path,
                                     S_ISDIR(info.st_mode) ? " is a folder that is not empty"
                                                           : " is there and is no folder",
                                     "; it is left alone: give a path where nothing is"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<OutputFolder>> OutputFolder::Create(std::string path) {
  DT_ASSIGN_OR_RETURN(path, LocalPlaceOf(std::move(path)));
  DT_RETURN_IF_ERROR(CheckFree(path));
  std::unique_ptr<OutputFolder> folder(
      new OutputFolder(path, absl::StrCat(path, ".partial-", RandomNonce())));
  DT_ASSIGN_OR_RETURN(folder->storage_, OpenPosixStorage(folder->partial_));
  return folder;
}

OutputFolder::~OutputFolder() {
  storage_.reset();
  std::error_code ignored;
  fs::remove_all(partial_, ignored);  // Its name is ours alone; after Publish it is not there.
}

absl::Status OutputFolder::Publish() {
  DT_RETURN_IF_ERROR(storage_->SyncDirectory(""));
  // rename() replaces an empty folder and nothing else, so that what appeared meanwhile stays.
  if (std::rename(partial_.c_str(), path_.c_str()) != 0) {
    return errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR
               ? absl::AlreadyExistsError(absl::StrCat(
                     path_, " appeared meanwhile; it is left alone: give a path where nothing is"))
               : ErrnoStatus(errno, absl::StrCat("cannot rename ", partial_, " to ", path_));
  }
  const std::string parent = fs::path(path_).parent_path();
  return FsyncDirectory(parent.empty() ? "." : parent);
}

}  // namespace dtrain::checkpoint
