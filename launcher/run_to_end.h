// Runs one of the launcher's own tools (not a rank) and waits for its end. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/job_env.h"

namespace dtrain::launcher {

// Runs `command[0]` with the arguments `command[1..]` and gives its exit code, or 128 + N if signal
// N killed it. With `errors`, the program's stdout is dropped and its stderr is stored there.
// Blocks until the program has ended. NotFound: it cannot be started.
absl::StatusOr<int> RunToEnd(const std::vector<std::string>& command,
                             const Environment& environment, std::string* errors = nullptr);

// Runs it likewise, drops its stderr, and gives its stdout. Unavailable: it did not end with 0.
absl::StatusOr<std::string> OutputOf(const std::vector<std::string>& command,
                                     const Environment& environment);

}  // namespace dtrain::launcher
