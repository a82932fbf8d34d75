// Appends the agent's events to RUN_DIR/events.jsonl, one JSON object a line. Not thread-safe; the
// reporter's thread owns it.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/unique_fd.h"

namespace dtrain::launcher {

// Members that every line of one agent has.
struct EventIdentity {
  std::string run_id;
  int node = 0;
};

class EventLog {
 public:
  static absl::StatusOr<EventLog> Open(const std::string& path, EventIdentity identity);

  // Writes {"v":1,"ts":..,"run":..,"node":..,"event":NAME, ...fields}.
  absl::Status Append(const std::string& event, const Json& fields,
                      const Clock& clock = Clock::Real());

 private:
  EventLog(UniqueFd fd, EventIdentity identity)
      : fd_(std::move(fd)), identity_(std::move(identity)) {}

  UniqueFd fd_;
  EventIdentity identity_;
  bool may_be_torn_ = false;  // The last line could not be written.
};

}  // namespace dtrain::launcher
