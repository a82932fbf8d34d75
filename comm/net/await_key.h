// Waits for a job's token in a file that another process of the job writes. Thread-safe.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "comm/net/job_key.h"

namespace dtrain::comm {

// JobKey::FromFile, as soon as the file is whole. PermissionDenied: it cannot be trusted.
// `missing`: it was not whole at the deadline.
absl::StatusOr<JobKey> AwaitKeyFile(const std::string& path, Deadline deadline,
                                    const absl::Status& missing);

}  // namespace dtrain::comm
