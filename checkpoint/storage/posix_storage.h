// Storage in a directory: fsync makes each file durable, fsync of its folder each name, and
// renameat2(RENAME_NOREPLACE) makes a commit appear. docs/CHECKPOINT_FORMAT.md explains why this is
// safe. Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/storage/file_system.h"
#include "checkpoint/storage/storage.h"

namespace dtrain::checkpoint {

// Opens the storage in `directory`, which is created when it is missing.
absl::StatusOr<std::unique_ptr<Storage>> OpenPosixStorage(const std::string& directory);

// The same logic over any file system. REQUIRES: `files` outlives the storage.
std::unique_ptr<Storage> MakePosixStorage(FileSystem& files);

}  // namespace dtrain::checkpoint
