// Hands the job token to the ranks in an anonymous, sealed file in memory. The token is in no
// argument list, no environment value and no file on disk. Thread-safe; the caller owns the
// descriptor.
#pragma once

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "comm/net/job_key.h"

namespace dtrain::launcher {

// A descriptor with the token's 32 bytes that nobody can change any more; close-on-exec.
absl::StatusOr<UniqueFd> TokenDescriptor(const comm::JobKey& key);

}  // namespace dtrain::launcher
