// How a client passes a gate: it drives its handshake, and tries again when the gate had no room.
// No state; thread-safe. Internal to comm/net.
#pragma once

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "base/numeric/prng.h"
#include "base/status.h"
#include "comm/net/gate.h"
#include "comm/net/socket.h"

namespace dtrain::comm {

// The time of one attempt; a little more than a server's own limit.
inline Deadline HandshakeTry() { return Deadline::After(absl::Seconds(6)); }

// Advances until the handshake is done.
inline absl::Status DriveHandshake(Handshake& handshake, Deadline deadline) {
  while (true) {
    DT_ASSIGN_OR_RETURN(const IoWant want, handshake.Advance());
    if (want == IoWant::kNothing) {
      return absl::OkStatus();
    }
    DT_RETURN_IF_ERROR(want == IoWant::kRead ? WaitReadable(handshake.fd(), deadline)
                                             : WaitWritable(handshake.fd(), deadline));
  }
}

// Calls `attempt` until it succeeds, fails for good (anything but Unavailable or DeadlineExceeded:
// those mean that the server was full, starting or slow) or `deadline` passes.
template <typename Attempt>
auto RetryHandshake(const Endpoint& server, Deadline deadline, Attempt attempt)
    -> decltype(attempt()) {
  SplitMix64 jitter(static_cast<uint64_t>(Clock::Real().MonotonicNanos()));
  absl::Duration pause = absl::Milliseconds(10);
  for (int tries = 1;; ++tries) {
    auto result = attempt();
    const absl::Status status = result.status();
    if (result.ok() || (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status))) {
      return result;
    }
    if (deadline.Remaining() <= pause) {
      return Annotate(status,
                      absl::StrFormat("handshake with %s (%d tries)", server.ToString(), tries));
    }
    // Spread the retries of many ranks.
    Clock::Real().Sleep(pause * (0.5 + jitter.Uniform()));
    pause = std::min(pause * 2, absl::Milliseconds(500));
  }
}

}  // namespace dtrain::comm
