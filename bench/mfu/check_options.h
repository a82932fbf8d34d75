// Checks the options of `dtrain bench mfu` against the model that they name. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "bench/mfu/options.h"

namespace dtrain::bench {

// Sets the sequence where none was given. InvalidArgument: a sequence that is longer than the
// `positions` of `model`, a type that the device does not multiply, bf16 states without masters.
absl::Status CheckOptions(const std::string& model, int64_t positions, MfuOptions& options);

}  // namespace dtrain::bench
