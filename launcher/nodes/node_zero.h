// Waits for the stores of node 0, during which stop signals are looked at. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "comm/net/job_key.h"
#include "comm/net/socket.h"
#include "comm/net/store_client.h"

namespace dtrain::launcher {

// Why node 0 cannot serve `endpoint`: `why`, and, unless it is the port that is taken, at which
// addresses it could.
absl::Status CannotServe(const comm::Endpoint& endpoint, const absl::Status& why);

// The status of a wait for other nodes that a stop signal has ended.
absl::Status StoppedWhileWaiting(int signal);

// Runs `attempt` in short slices until it gives something other than DeadlineExceeded. `cancelled`
// gives the stop signal that arrived, or 0.
template <typename Attempt>
auto InSlices(Deadline deadline, const std::function<int()>& cancelled, Attempt attempt)
    -> decltype(attempt(deadline)) {
  constexpr absl::Duration kSlice = absl::Milliseconds(100);
  while (true) {
    auto result = attempt(Earlier(deadline, Deadline::After(kSlice)));
    const absl::Status status = [&result] {
      if constexpr (std::is_same_v<decltype(result), absl::Status>) {
        return result;
      } else {
        return result.status();
      }
    }();
    if (!absl::IsDeadlineExceeded(status) || deadline.Expired()) {
      return result;
    }
    if (const int signal = cancelled(); signal != 0) {
      return StoppedWhileWaiting(signal);
    }
  }
}

// FailedPrecondition unless `of_node_zero`, the version of node 0's dtrain, is that of this one:
// what they tell each other may differ.
absl::Status CheckVersion(const std::string& of_node_zero);

// A name for a connection of the agent of node `number`, which no other agent has: one that is
// started again has another name.
absl::StatusOr<std::string> UniqueAgentName(int number);

// Connects as the agent `hello` to a store that may start later, or is still another's.
// PermissionDenied: another token. The log says from time to time what is waited for. One try takes
// `try_time` at most, during which `cancelled` is not asked.
absl::StatusOr<std::unique_ptr<comm::StoreClient>> ConnectToNodeZero(
    const comm::Endpoint& endpoint, const comm::JobKey& key, const comm::Hello& hello,
    Deadline deadline, const std::function<int()>& cancelled,
    absl::Duration try_time = absl::Seconds(2));

}  // namespace dtrain::launcher
