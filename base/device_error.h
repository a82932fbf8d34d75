// Tells an error of a device from other reasons for which something is not available.
#pragma once

#include "absl/status/status.h"

namespace dtrain {

// Whether a disk or another device failed (EIO), by the status that ErrnoStatus made of it: the
// same call is likely to fail again. Thread-safe.
bool IsDeviceError(const absl::Status& status);

// Makes `status` one, if it is an error: for who has heard of one from another process.
void MarkDeviceError(absl::Status& status);

}  // namespace dtrain
