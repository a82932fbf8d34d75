// The order by which an agent gives a process that stayed after a failed attempt another one
// (base/agent_channel.h): what a new process would have got when it started.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/job_env.h"

namespace dtrain {

struct NextAttempt {
  Environment environment;  // Variables to set; one that is missing here keeps its value.
  std::string out_path;     // Files to which stdout and stderr are appended.
  std::string err_path;

  std::string Encode() const;  // One line of JSON.
  static absl::StatusOr<NextAttempt> Parse(absl::string_view line);
};

}  // namespace dtrain
