// Which errors are first-hand, and TORCHELASTIC_ERROR_FILE, by which torchrun learns that of a
// worker. Pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace dtrain {

// Whether a rank that ends with `status` has failed by itself. One that only noticed another's
// failure is a victim, and must not claim the root cause. What is not available is a peer, unless a
// device of the rank's own host failed.
bool IsFirstHand(const absl::Status& status);

// The file's content:
// {"message":{"message":...,"extraInfo":{"py_callstack":...,"timestamp":"..."}}}.
std::string TorchErrorJson(const absl::Status& status, absl::Time detected);

}  // namespace dtrain
