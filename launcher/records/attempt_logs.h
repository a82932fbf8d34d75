// Folders of the ranks' outputs: LOGS/attempt-A, one for each start of the ranks. The count goes on
// over the launches of a run, so that none appends to the logs of another. Reads folders; no state.
#pragma once

#include <optional>
#include <string>

namespace dtrain::launcher {

// "LOGS/attempt-3".
std::string AttemptFolder(const std::string& logs, int number);

// The largest number in `logs`; nothing when it holds no attempt, or is not there.
std::optional<int> NewestAttempt(const std::string& logs);

}  // namespace dtrain::launcher
