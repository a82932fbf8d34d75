// Why the ranks have agreed to stop, for people.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "dtrain/job.h"

namespace dtrain {

// The signal's name, or what the program gave Job::Stop on the first rank that called it, which all
// ranks ask for together. REQUIRES: job.stop_agreed().
absl::StatusOr<std::string> WhatStopped(Job& job);

}  // namespace dtrain
