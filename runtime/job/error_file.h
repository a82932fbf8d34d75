// TORCHELASTIC_ERROR_FILE: how torchrun learns the first-hand error of a worker.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace dtrain {

// The file's content:
// {"message":{"message":...,"extraInfo":{"py_callstack":...,"timestamp":"..."}}}.
std::string TorchErrorJson(const absl::Status& status, absl::Time detected);

}  // namespace dtrain
