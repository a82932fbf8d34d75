#include "launcher/nodes/node_zero.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <mutex>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/console/wait_notice.h"
#include "base/status.h"
#include "launcher/hosts/node_messages.h"
#include "launcher/machine.h"

namespace dtrain::launcher {
namespace {

// A store of another attempt refuses at once. Without a pause, the handshakes would take a core on
// both nodes until it is gone.
constexpr absl::Duration kPause = absl::Milliseconds(20);

}  // namespace

absl::Status CannotServe(const comm::Endpoint& endpoint, const absl::Status& why) {
  const bool is_of_this_host = FreePort(endpoint.host) != 0;
  return absl::Status(
      why.code(),
      absl::StrFormat("node 0 cannot serve --rdzv-endpoint %s (it must be an address of this host, "
                      "and a free port): %s%s",
                      endpoint.ToString(), why.message(),
                      is_of_this_host ? ""
                                      : absl::StrCat("; the addresses of this host are ",
                                                     DescribeOwnAddresses())));
}

absl::Status StoppedWhileWaiting(int signal) {
  return signal == SIGINT ? absl::CancelledError("SIGINT while waiting for the other nodes")
                          : absl::AbortedError("stop signal while waiting for the other nodes");
}

absl::Status CheckVersion(const std::string& of_node_zero) {
  return of_node_zero == OwnVersion()
             ? absl::OkStatus()
             : absl::FailedPreconditionError(
                   absl::StrFormat("node 0 has dtrain %s, this node %s; install the same on both",
                                   of_node_zero, OwnVersion()));
}

absl::StatusOr<std::string> UniqueAgentName(int number) {
  std::array<uint8_t, 6> bytes{};
  DT_RETURN_IF_ERROR(comm::RandomBytes(absl::MakeSpan(bytes)));
  return absl::StrFormat("node %d #%s", number,
                         absl::BytesToHexString(absl::string_view(
                             reinterpret_cast<const char*>(bytes.data()), bytes.size())));
}

absl::StatusOr<std::unique_ptr<comm::StoreClient>> ConnectToNodeZero(
    const comm::Endpoint& endpoint, const comm::JobKey& key, const comm::Hello& hello,
    Deadline deadline, const std::function<int()>& cancelled, absl::Duration try_time) {
  std::mutex mutex;
  std::string last;  // Why the last try failed.
  const WaitNotice notice([&] {
    std::lock_guard lock(mutex);
    return absl::StrFormat("node %d waits for `dtrain launch` of node 0 at %s%s", hello.id,
                           endpoint.ToString(), last.empty() ? "" : absl::StrCat(" (", last, ")"));
  });
  return InSlices(deadline, cancelled, [&](Deadline) {
    auto client = comm::StoreClient::Connect(endpoint, key, hello,
                                             Earlier(deadline, Deadline::After(try_time)));
    // Otherwise the store is not there yet, or is still the previous attempt's.
    if (client.ok() || absl::IsPermissionDenied(client.status())) {
      return client;
    }
    {
      std::lock_guard lock(mutex);
      last = std::string(client.status().message());
    }
    Clock::Real().Sleep(std::min(kPause, deadline.Remaining()));
    return absl::StatusOr<std::unique_ptr<comm::StoreClient>>(
        absl::DeadlineExceededError(client.status().message()));
  });
}

}  // namespace dtrain::launcher
