// Storage on a directory: each file is made durable by fsync, each name by fsync of its folder, and
// a commit appears by renameat2(RENAME_NOREPLACE). docs/CHECKPOINT_FORMAT.md gives the argument.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/storage/file_system.h"
#include "checkpoint/storage/storage.h"

namespace dtrain::checkpoint {

// Checkpoints in `directory`, which is created when it is missing.
absl::StatusOr<std::unique_ptr<Storage>> OpenPosixStorage(const std::string& directory);

// The same logic over any file system. REQUIRES: `files` outlives the storage.
std::unique_ptr<Storage> MakePosixStorage(FileSystem& files);

}  // namespace dtrain::checkpoint
