// Why the ranks have agreed to stop, and how far they are with it, for people.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "dtrain/job.h"

namespace dtrain {

// The signal's name, or what the program gave Job::Stop on the first rank that called it, which all
// ranks ask for together. REQUIRES: job.stop_agreed().
absl::StatusOr<std::string> WhatStopped(Job& job);

// Tells the agent how far this rank is with the stop behind `step`: `stage` is
// AgentMessage::kStepFinished or kStepSaved. The agent says what is left of the time for it.
void TellStopping(Job& job, const char* stage, int64_t step);

}  // namespace dtrain
