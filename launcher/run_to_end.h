// Runs a program and waits for its end: the launcher's own tools, not ranks.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/job_env.h"

namespace dtrain::launcher {

// The exit code of `words[0]` with the arguments `words[1..]`, 128 + N where signal N killed it.
// With `errors`, the program's stdout is dropped and what it writes to stderr is put there. Blocks
// until the program has ended. NotFound: it cannot be started.
absl::StatusOr<int> RunToEnd(const std::vector<std::string>& words, const Environment& environment,
                             std::string* errors = nullptr);

}  // namespace dtrain::launcher
