// Reads whole files up to a limit, and writes files so that they appear whole and durable.
//
// Thread-safe. Errors name the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"

namespace dtrain {

// The content of `path`; ResourceExhausted when it is longer than `bytes_max`.
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t bytes_max = 256U << 20);

// Writes `content` to a temporary name in the same directory, fsyncs it, renames it over `path` and
// fsyncs the directory. On an error `path` is as it was and the temporary file is gone.
absl::Status WriteFileAtomic(const std::string& path, absl::string_view content, int mode = 0644);

// Writes all of `data` to `fd` (EINTR and short writes are handled).
absl::Status WriteFully(int fd, const void* data, size_t bytes);

// Makes a rename or a create in `directory` durable.
absl::Status FsyncDirectory(const std::string& directory);

// Creates `path` and its missing parents.
absl::Status MakeDirectories(const std::string& path, int mode = 0755);

// The working directory; "" when it was removed.
std::string WorkingDirectory();

bool FileExists(const std::string& path);

// Opens for reading or with `flags`, and always close-on-exec.
absl::StatusOr<UniqueFd> OpenFile(const std::string& path, int flags, int mode = 0644);

}  // namespace dtrain
