// Reads ranges of files that other programs wrote. Unlike Storage it follows symbolic links, of
// which the model folders of download caches consist. Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/storage/storage.h"

namespace dtrain::checkpoint {

// Opens the regular file at `path`. NotFound, PermissionDenied, InvalidArgument (a folder, a FIFO)
// name it. The file is read with pread: one that is truncated meanwhile gives OutOfRange.
absl::StatusOr<std::unique_ptr<ReadableFile>> OpenPlainFile(const std::string& path);

// The whole of a small file; InvalidArgument when it is longer than `bytes_max`.
absl::StatusOr<std::string> ReadPlainFile(const std::string& path, uint64_t bytes_max);

}  // namespace dtrain::checkpoint
