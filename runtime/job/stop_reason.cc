#include "runtime/job/stop_reason.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/job/gather_texts.h"
#include "runtime/job/job_state.h"

namespace dtrain {
namespace {

const char* StopSignalName(int signal) {
  return signal == SIGTERM ? "SIGTERM" : signal == SIGINT ? "Ctrl-C (SIGINT)" : "SIGHUP";
}

}  // namespace

absl::StatusOr<std::string> WhatStopped(Job& job) {
  if (job.stop_signal() != Job::kProgramStop) {
    return std::string(StopSignalName(job.stop_signal()));
  }
  DT_ASSIGN_OR_RETURN(
      const std::vector<std::string> reasons,
      GatherTexts(job.group(), job.state().stop_reason,
                  Deadline::After(absl::Seconds(job.config().comm_timeout_seconds()))));
  const auto first = std::find_if(reasons.begin(), reasons.end(),
                                  [](const std::string& reason) { return !reason.empty(); });
  return first == reasons.end() ? "the program" : absl::StrFormat("the program (%s)", *first);
}

void TellStopping(Job& job, const char* stage, int64_t step) {
  job.state().agent.Send({.kind = AgentMessage::Kind::kStopping,
                          .rank = job.rank(),
                          .pid = getpid(),
                          .step = step,
                          .phase = stage});
}

}  // namespace dtrain
