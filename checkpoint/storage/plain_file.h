// Files that other programs wrote, read by ranges. Unlike Storage it follows symbolic links: model
// folders of download caches are made of them.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/storage/storage.h"

namespace dtrain::checkpoint {

// Opens the regular file at `path`. NotFound, PermissionDenied, InvalidArgument (a folder, a FIFO)
// name it. What it returns reads with pread: a file that is cut meanwhile gives OutOfRange.
absl::StatusOr<std::unique_ptr<ReadableFile>> OpenPlainFile(const std::string& path);

// The whole of a small file; InvalidArgument when it is longer than `bytes_max`.
absl::StatusOr<std::string> ReadPlainFile(const std::string& path, uint64_t bytes_max);

}  // namespace dtrain::checkpoint
