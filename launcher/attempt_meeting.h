// Where the nodes of an attempt of an elastic job meet, as node 0 tells the others. A value.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "comm/net/socket.h"

namespace dtrain::launcher {

// Node 0 tells the other nodes this of an attempt, when its store listens.
struct Meeting {
  comm::Endpoint store;
  std::string run_id;
  int log_number = 0;
  int master_port = 0;
  bool begins_job = false;  // The attempt is the first of the job: see JobShape.
  absl::Status error;       // Why node 0 cannot begin.
};

std::string Encode(const Meeting& meeting);
// `host` is node 0's, on which the store is.
absl::StatusOr<Meeting> ParseMeeting(absl::string_view text, const std::string& host);

}  // namespace dtrain::launcher
