// The order by which an agent gives a process that waits for an attempt the next one
// (base/agent_channel.h): what a new process would have got when it started.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/job_env.h"

namespace dtrain {

// The order by which it tells a process that asks to stay that there is no next attempt for it.
inline constexpr char kEndOrder[] = "end";

struct NextAttempt {
  Environment environment;  // Variables to set; one that is missing here keeps its value.
  std::string out_path;     // Files to which stdout and stderr are appended.
  std::string err_path;
  // Where a process that was started without a place is bound. Empty and -1: nothing changes.
  std::vector<int> cpus = {};
  int memory_node = -1;

  std::string Encode() const;  // One line of JSON.
  static absl::StatusOr<NextAttempt> Parse(absl::string_view line);
};

}  // namespace dtrain
