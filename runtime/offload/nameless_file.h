// Files without a name: nothing is left of them whatever ends the process. Reading and writing them
// whole, at an offset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/unique_fd.h"

namespace dtrain {

// An empty one in `folder`. NotFound and PermissionDenied begin with `setting`, which says where
// the folder comes from, and name the folder.
absl::StatusOr<UniqueFd> OpenNamelessFile(const std::string& folder, absl::string_view setting);

// Reserves the file's blocks [0, bytes): a disk that is too small is an error here
// (ResourceExhausted, with setting, folder and size), not a failed write later.
absl::Status ReserveBlocks(const UniqueFd& file, int64_t bytes, const std::string& folder,
                           absl::string_view setting);

// All of `into`, or `from`, at `offset`. Block. Unavailable says `what` is read or written.
absl::Status ReadAt(int fd, int64_t offset, absl::Span<std::byte> into, absl::string_view what);
// Sends the bytes towards the disk at once: dirty pages would otherwise fill memory until the
// kernel stalls the process.
absl::Status WriteAt(int fd, int64_t offset, absl::Span<const std::byte> from,
                     absl::string_view what);

}  // namespace dtrain
